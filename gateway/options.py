"""What a gateway is built from, and what its startup message shows.

The inputs are the configuration, the data folder, and settings that tests override.
"""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import attrs

from gateway.config.certificate import ServerCertificate
from gateway.config.merge import FileConfig
from gateway.config.schema import Config
from gateway.domain.setting import Source
from gateway.frozen import frozen
from gateway.storage.data_folder import DataFolder

if TYPE_CHECKING:
    from gateway.cluster.membership.times import ClusterTimes


@attrs.define
class StartupInfo:
    """What the startup message shows to the operator.

    ``secret`` is the first API key; None except on the first start. ``failures`` are the names of the channels that did
    not list their models, each with the reason. ``setup_token`` is the token of the console's setup link; None if there
    is an administrator.
    """

    secret: str | None = None
    models: tuple[str, ...] = ()
    demo: bool = False
    failures: tuple[str, ...] = ()
    setup_token: str | None = None


@frozen
class AppOptions:
    """What ``gateway.app`` builds the gateway from.

    Attributes:
        environ: holds provider keys, which are used if no channel is configured.
        discover: whether to look for provider keys in ``environ`` and for model servers on this machine.
        declare: whether to write the accounts and keys of ``config`` to the database.
        demo_pace_s: pause between two words of the built-in demo.
        task_pace: factor for the waits of image tasks, video jobs and webhooks.
        cluster_times: the times of nodes; None: those of ``cluster.membership.times``.
        sources: the source of each setting, by path; None: every non-default value comes from the file.
        read_config: reads the configuration again for a reload. Raises ``ConfigError``.
        certificate: for TLS; None: plain HTTP.
        renew_secrets: secret files to recreate if they are missing.
    """

    config: Config
    folder: DataFolder
    environ: Mapping[str, str]
    discover: bool = True
    declare: bool = True
    demo_pace_s: float = 0.03
    task_pace: float = 1.0
    cluster_times: "ClusterTimes | None" = None
    clock: Callable[[], float] = time.time
    sources: Mapping[str, Source] | None = None
    read_config: Callable[[], FileConfig] | None = None
    certificate: ServerCertificate | None = None
    renew_secrets: tuple[str, ...] = ()
