//! The job's socket: messages in, replies out. Never trusts a byte of it.
