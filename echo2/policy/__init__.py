"""The shared policy: facts in, decisions out. No clock, no I/O, no randomness; both worlds use it unchanged.

Where a question is decided:

| question | file |
|---|---|
| which workers are rented and stopped | `roster`, `departures`; at the start `provision`, `serial` |
| which worker generates the next prompt | `dispatch` |
| whether a rollout may start, is trained, is dropped | `staleness`, `training` |
| who gets a snapshot, from whom, until when | `publication`, `transfers`, `under_way`, `broadcast/` |
| how many rollouts/s the learner needs, what bounds a run | `capacity`, `generation` |
| what a run settles to | `steady/` |
| S, kappa and the plan before anything is rented | `planner`, `search`, `explain` |
| all of it at run time, as one state machine | `scheduler` |

Facts are in `facts`, decisions in `decisions`, their JSON form in `wire`.
"""
