"""The exceptions MeshAI raises and catches.

    MeshAIError
    ├── ConfigError            settings that cannot be used; names file, line and key
    ├── StoreError             the database cannot be opened, read or written
    │   └── StoreReplaced      another database is in use from now on; nothing was changed, and trying again helps
    ├── CommandError           its text is for the person who sent the command
    ├── WindowError            the running bot cannot be looked at
    │   └── NotRunning         because none runs
    ├── WeightsError           a model file cannot be fetched, checked or found
    ├── RadioError
    │   ├── RadioDisconnected  no link to the node now; it may come back
    │   ├── PacketTooLong      more bytes than the address can carry
    │   └── NotDelivered       the node or the mesh refused the packet
    └── ModelError
        ├── ModelUnavailable   no connection, wrong address, key or model name
        ├── ModelTimeout       no answer within the configured time
        ├── ModelRefused       an answer without usable text
        └── ContextTooLong     the prompt does not fit the model

Edges translate foreign exceptions where they enter; inner code raises and catches only these.
"""


class MeshAIError(Exception):
    """Root of everything MeshAI raises on purpose."""


class ConfigError(MeshAIError):
    pass


class StoreError(MeshAIError):
    pass


class StoreReplaced(StoreError):
    pass


class CommandError(MeshAIError):
    pass


class WindowError(MeshAIError):
    pass


class NotRunning(WindowError):
    pass


class WeightsError(MeshAIError):
    pass


class RadioError(MeshAIError):
    pass


class RadioDisconnected(RadioError):
    pass


class PacketTooLong(RadioError):
    pass


class NotDelivered(RadioError):
    pass


class ModelError(MeshAIError):
    pass


class ModelUnavailable(ModelError):
    pass


class ModelTimeout(ModelError):
    pass


class ModelRefused(ModelError):
    pass


class ContextTooLong(ModelError):
    pass
