"""The tasks that come with echo2, one small file each. `echo2.runtime.data.registry` finds them by name."""
