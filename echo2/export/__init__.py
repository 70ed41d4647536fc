"""Writes a plan as what other tools launch. Called by `echo2 export`; nothing here rents anything."""
