"""What pytest-xdist runs in each worker. execnet sends the text of this module, so it holds no more than a call."""

if __name__ == "__channelexec__":
    from tests.support.forked_workers import run_worker

    run_worker(channel)  # type: ignore[name-defined]  # noqa: F821 - execnet sets it
