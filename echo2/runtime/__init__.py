"""The live world: it feeds the scheduler measured facts and carries out its decisions on real machines.

Three planes, each a package that can be read alone: `rollout` (workers and engines), `learning` (GRPO) and
`data` (tasks, rewards and the rollout ledger). Importing this package, or a plane, loads neither torch nor
transformers nor vllm; a module that needs one of them loads it.
"""
