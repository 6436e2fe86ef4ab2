"""Speaks the protocol of `meshai/model/server.py` without a model, for what goes wrong around one.

Its first argument says how it behaves; an answer names its process. A question `die` ends it.
"""

import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def main() -> None:
    behaviour = sys.argv[1]
    orders = json.loads(sys.stdin.readline())
    match behaviour:
        case "dies":
            print("first line\nGGML_ASSERT(ctx) failed\x1b[0m", file=sys.stderr, flush=True)
            os._exit(3)
        case "babbles":
            print("hello there, this is no JSON", flush=True)
            os._exit(0)
        case "lacks":
            print(json.dumps({"error": "something is missing; install it"}), flush=True)
            time.sleep(3600)
        case "hangs":
            time.sleep(3600)
        case "dies once":
            if is_first_time(f"{orders['path']}.died"):
                os.abort()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text = asked["messages"][-1]["content"]
            if text == "die":
                os._exit(9)
            if text == "wait" or (text == "wait once" and is_first_time(f"{orders['path']}.waited")):
                time.sleep(3600)
            is_allowed = self.headers["Authorization"] == f"Bearer {orders['key']}"
            said = {key: orders[key] for key in ("name", "context_tokens")} | {
                "pid": os.getpid(),
                "temperature": asked["temperature"],
                "argv": " ".join(sys.argv),
            }
            answer = {"choices": [{"message": {"content": json.dumps(said)}, "finish_reason": "stop"}]}
            body = json.dumps(answer).encode() if is_allowed else b"{}"
            self.send_response(200 if is_allowed else 401)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps({"url": f"http://127.0.0.1:{server.server_port}"}), flush=True)
    sys.stdin.read()
    os._exit(0)


def is_first_time(marker: str) -> bool:
    try:
        with open(marker, "x"):
            return True
    except FileExistsError:
        return False


if __name__ == "__main__":
    main()
