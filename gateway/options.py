"""What the house is built on: the settings, the data folder, and what differs between a gateway and a test of one."""

import time
from collections.abc import Callable, Mapping

import attrs

from gateway.config.merge import FileConfig
from gateway.config.schema import Config
from gateway.domain.setting import Source
from gateway.storage.data_folder import DataFolder


@attrs.define
class StartupInfo:
    """What the operator is told at start.

    Attributes:
        secret: the first key, on the first start only.
        setup_token: what the console's link ends in while it has no administrator.
    """

    secret: str | None = None
    models: tuple[str, ...] = ()
    demo: bool = False
    setup_token: str | None = None


@attrs.frozen
class AppOptions:
    """What the house is built on.

    Attributes:
        config: the settings.
        folder: the data folder, locked.
        environ: where provider keys are looked for when no channel is configured.
        discover: whether they are, and servers on this machine too.
        declare: whether the settings' accounts and keys are brought into the store.
        demo_pace_s: pause between the words of the built-in demo.
        task_pace: what waits for a provider's tasks are multiplied by.
        clock: Unix seconds.
        sources: by path, who says what of ``config``; None: whatever is not as by default is the file's.
        read_config: reads the settings anew, for a reload. Raises ``ConfigError``.
        renew_secrets: secret files that are made anew if they are lost.
    """

    config: Config
    folder: DataFolder
    environ: Mapping[str, str]
    discover: bool = True
    declare: bool = True
    demo_pace_s: float = 0.03
    task_pace: float = 1.0
    clock: Callable[[], float] = time.time
    sources: Mapping[str, Source] | None = None
    read_config: Callable[[], FileConfig] | None = None
    renew_secrets: tuple[str, ...] = ()
