//! Limits of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit of open descriptors to the hard one, for samplers that keep many files open.
pub fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    // A refusal leaves the limit as it was.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
