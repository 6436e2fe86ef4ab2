"""The library's Bluetooth interface, as a link wants it. Needs the `ble` extra, hence a module of its own."""

import threading

from meshtastic.ble_interface import BLEInterface

from meshai.radio.interface import Interface


class BleLink(Interface, BLEInterface):  # type: ignore[misc]
    """A node within reach of Bluetooth."""

    _exit_handler = None
    """The library's own, which its `close` expects even when connecting failed before it was made."""

    def close(self) -> None:
        """Close, except from the Bluetooth thread itself, which would then wait for itself for ever."""
        if self.client is not None and threading.current_thread() is self.client._eventThread:
            self.end("the node ended the Bluetooth connection")
            self._disconnected()
        else:
            super().close()
