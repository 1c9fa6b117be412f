//! Raw reads of `/proc`: directories, kept descriptors, reused buffers, parsers. Never keeps the
//! history of a process and never computes a rate.

pub mod file;
pub mod parse;
