"""The data plane: tasks with their prompts and verifiers, and the durable ledger of rollouts.

`rollout.Rollout` is what the planes hand each other, `ledger.Ledger` the only queue between them,
`registry.load_task` finds a task by name, `verify.Verifier` runs its verifier under a deadline.
Importing this package loads no heavy library.
"""
