//! What was typed, then what it means; the exit-code table. Never touches a GPU, never spawns.
