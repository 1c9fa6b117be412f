//! Bounds on what a job may say about itself. The socket, the fold and the summary share them, so that what
//! one lets through the next does not refuse. They lie well above what training needs: logging the norm of every
//! layer takes 10,000 names.

/// Longest name of a tag or scalar, in bytes.
pub const NAME_BYTES: usize = 128;

/// Longest message on the job's socket, in bytes with its newline.
pub const MESSAGE_BYTES: usize = 64 * 1024;

/// Tags open at once in one stack.
pub const TAG_DEPTH: usize = 64;

/// Different names of scalars in one run.
pub const SCALAR_NAMES: usize = 16_384;

/// Tags begun a second on one connection, after a burst of [`TAG_BURST`]. Each tag costs a set of rows.
pub const TAGS_PER_SECOND: u32 = 2_000;

/// Tags begun at once on one connection.
pub const TAG_BURST: u32 = 20_000;

/// Other marks a second on one connection, after a burst of twice as many.
pub const MARKS_PER_SECOND: u32 = 200_000;

/// Bytes a second on one connection, after a burst of twice as many.
pub const BYTES_PER_SECOND: u32 = 32 << 20;

/// Connections of all processes together.
pub const CONNECTIONS: usize = 256;

/// Connections of one process.
pub const CONNECTIONS_PER_PROCESS: usize = 16;

/// New tag stacks a second, after a burst of [`STACK_BURST`].
pub const STACKS_PER_SECOND: u32 = 64;

/// New tag stacks at once; also how many named stacks, which outlive their connections, one run has.
pub const STACK_BURST: u32 = 1024;

/// Requests of one connection that wait for an answer.
pub const REQUESTS: usize = 8;
