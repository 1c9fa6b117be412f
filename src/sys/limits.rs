//! Limits of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// How many descriptors may be open at a time: the soft limit.
pub fn descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Raises the soft limit of open descriptors to the hard one, for samplers that keep many files open.
pub fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    // A refusal leaves the limit as it was.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_more_than_the_standard_ones() {
        assert!(descriptors() > 3);
    }
}
