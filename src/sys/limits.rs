//! Limits of this process.

use rustix::process::{Resource, getrlimit};

/// How many descriptors may be open at a time: the soft limit.
pub fn descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_more_than_the_standard_ones() {
        assert!(descriptors() > 3);
    }
}
