from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Pod(_message.Message):
    __slots__ = ("uid", "namespace", "name", "runtime_handler")
    UID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_HANDLER_FIELD_NUMBER: _ClassVar[int]
    uid: str
    namespace: str
    name: str
    runtime_handler: str
    def __init__(self, uid: _Optional[str] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ..., runtime_handler: _Optional[str] = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class Mount(_message.Message):
    __slots__ = ("destination", "source", "type", "options")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    destination: str
    source: str
    type: str
    options: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, destination: _Optional[str] = ..., source: _Optional[str] = ..., type: _Optional[str] = ..., options: _Optional[_Iterable[str]] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("path", "type", "major", "minor")
    PATH_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MAJOR_FIELD_NUMBER: _ClassVar[int]
    MINOR_FIELD_NUMBER: _ClassVar[int]
    path: str
    type: str
    major: int
    minor: int
    def __init__(self, path: _Optional[str] = ..., type: _Optional[str] = ..., major: _Optional[int] = ..., minor: _Optional[int] = ...) -> None: ...

class EnvVar(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class Container(_message.Message):
    __slots__ = ("runtime_id", "name", "pod", "grants", "mounts", "devices", "allows_all_devices", "cgroup_path", "pid")
    RUNTIME_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    MOUNTS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    ALLOWS_ALL_DEVICES_FIELD_NUMBER: _ClassVar[int]
    CGROUP_PATH_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    runtime_id: str
    name: str
    pod: Pod
    grants: _containers.RepeatedCompositeFieldContainer[Grant]
    mounts: _containers.RepeatedCompositeFieldContainer[Mount]
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    allows_all_devices: bool
    cgroup_path: str
    pid: int
    def __init__(self, runtime_id: _Optional[str] = ..., name: _Optional[str] = ..., pod: _Optional[_Union[Pod, _Mapping]] = ..., grants: _Optional[_Iterable[_Union[Grant, _Mapping]]] = ..., mounts: _Optional[_Iterable[_Union[Mount, _Mapping]]] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., allows_all_devices: _Optional[bool] = ..., cgroup_path: _Optional[str] = ..., pid: _Optional[int] = ...) -> None: ...

class EnsurePartitionRequest(_message.Message):
    __slots__ = ("session", "container")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    session: int
    container: Container
    def __init__(self, session: _Optional[int] = ..., container: _Optional[_Union[Container, _Mapping]] = ...) -> None: ...

class EnsurePartitionResponse(_message.Message):
    __slots__ = ("mounts", "env", "claim_uid", "partition")
    MOUNTS_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    CLAIM_UID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    mounts: _containers.RepeatedCompositeFieldContainer[Mount]
    env: _containers.RepeatedCompositeFieldContainer[EnvVar]
    claim_uid: str
    partition: str
    def __init__(self, mounts: _Optional[_Iterable[_Union[Mount, _Mapping]]] = ..., env: _Optional[_Iterable[_Union[EnvVar, _Mapping]]] = ..., claim_uid: _Optional[str] = ..., partition: _Optional[str] = ...) -> None: ...

class RecordStartRequest(_message.Message):
    __slots__ = ("runtime_id", "pid", "session", "container")
    RUNTIME_ID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    runtime_id: str
    pid: int
    session: int
    container: Container
    def __init__(self, runtime_id: _Optional[str] = ..., pid: _Optional[int] = ..., session: _Optional[int] = ..., container: _Optional[_Union[Container, _Mapping]] = ...) -> None: ...

class RecordStartResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReleasePartitionRequest(_message.Message):
    __slots__ = ("runtime_id", "stage")
    class Stage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STAGE_UNSPECIFIED: _ClassVar[ReleasePartitionRequest.Stage]
        STOPPED: _ClassVar[ReleasePartitionRequest.Stage]
        REMOVED: _ClassVar[ReleasePartitionRequest.Stage]
    STAGE_UNSPECIFIED: ReleasePartitionRequest.Stage
    STOPPED: ReleasePartitionRequest.Stage
    REMOVED: ReleasePartitionRequest.Stage
    RUNTIME_ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    runtime_id: str
    stage: ReleasePartitionRequest.Stage
    def __init__(self, runtime_id: _Optional[str] = ..., stage: _Optional[_Union[ReleasePartitionRequest.Stage, str]] = ...) -> None: ...

class ReleasePartitionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SynchronizeRequest(_message.Message):
    __slots__ = ("session", "containers")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    session: int
    containers: _containers.RepeatedCompositeFieldContainer[Container]
    def __init__(self, session: _Optional[int] = ..., containers: _Optional[_Iterable[_Union[Container, _Mapping]]] = ...) -> None: ...

class SynchronizeResponse(_message.Message):
    __slots__ = ("unbound_runtime_ids", "drifted_runtime_ids", "released_runtime_ids")
    UNBOUND_RUNTIME_IDS_FIELD_NUMBER: _ClassVar[int]
    DRIFTED_RUNTIME_IDS_FIELD_NUMBER: _ClassVar[int]
    RELEASED_RUNTIME_IDS_FIELD_NUMBER: _ClassVar[int]
    unbound_runtime_ids: _containers.RepeatedScalarFieldContainer[str]
    drifted_runtime_ids: _containers.RepeatedScalarFieldContainer[str]
    released_runtime_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, unbound_runtime_ids: _Optional[_Iterable[str]] = ..., drifted_runtime_ids: _Optional[_Iterable[str]] = ..., released_runtime_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class RenewSessionRequest(_message.Message):
    __slots__ = ("session", "runtime_name", "runtime_version", "synchronized_since")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_NAME_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_VERSION_FIELD_NUMBER: _ClassVar[int]
    SYNCHRONIZED_SINCE_FIELD_NUMBER: _ClassVar[int]
    session: int
    runtime_name: str
    runtime_version: str
    synchronized_since: int
    def __init__(self, session: _Optional[int] = ..., runtime_name: _Optional[str] = ..., runtime_version: _Optional[str] = ..., synchronized_since: _Optional[int] = ...) -> None: ...

class RenewSessionResponse(_message.Message):
    __slots__ = ("is_known",)
    IS_KNOWN_FIELD_NUMBER: _ClassVar[int]
    is_known: bool
    def __init__(self, is_known: _Optional[bool] = ...) -> None: ...
