"""The tasks by kind, loaded when asked for: `TASKS[kind]` is `module:Class`, a subclass of `probes.task.Task`."""

TASKS: dict[str, str] = {
    "two_timescale": "probes.tasks.two_timescale:TwoTimescale",
}
