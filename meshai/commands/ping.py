"""!ping: how the message that asked was heard."""

from meshai.commands.base import Command, Request
from meshai.messages import IncomingMessage, Reply


async def run(request: Request) -> Reply:
    return Reply(f"pong: {signal(request.message)}")


def signal(message: IncomingMessage) -> str:
    """How a message reached us. SNR and RSSI describe the last hop only."""
    if message.via_mqtt:
        path = "came over MQTT"
    elif message.hops is None:
        path = "heard"
    elif message.hops == 0:
        path = "heard directly"
    else:
        path = f"heard over {message.hops} hop{'s' if message.hops > 1 else ''}"
    levels = [
        f"SNR {message.snr:.1f} dB" if message.snr is not None else "",
        f"RSSI {message.rssi} dBm" if message.rssi is not None else "",
    ]
    return ", ".join([path, *filter(None, levels)])


command = Command("ping", "how well I heard you: hops, SNR, RSSI.", run, ("!ping",))
