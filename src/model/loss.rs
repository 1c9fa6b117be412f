//! What a job said and gpurun did not record: why, and how much.

use std::fmt;

use super::limits;

/// Why something that came over the job's socket was not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Too many connections.
    Connections,
    /// Too many clients began at once.
    Clients,
    /// A line that is no message of the protocol, or too long.
    Messages,
    /// A tag or scalar whose name is against the rules.
    Names,
    /// Tags begun too fast.
    TagRate,
    /// Tags nested too deep.
    TagDepth,
    /// Steps and scalars marked too fast.
    MarkRate,
    /// Too many different names of scalars.
    ScalarNames,
    /// Scalars that are no numbers.
    Values,
    /// Messages that the client gave up because they were not read in time.
    Unread,
    /// Replies that the client did not read.
    Replies,
    /// Marks that were not taken before the end of the run.
    Late,
}

impl Loss {
    /// Every reason, in the order in which losses are reported.
    pub const ALL: [Loss; 12] = [
        Loss::Connections,
        Loss::Clients,
        Loss::Messages,
        Loss::Names,
        Loss::TagRate,
        Loss::TagDepth,
        Loss::MarkRate,
        Loss::ScalarNames,
        Loss::Values,
        Loss::Unread,
        Loss::Replies,
        Loss::Late,
    ];

    /// What is counted.
    pub fn subject(self) -> &'static str {
        match self {
            Loss::Connections | Loss::Clients => "connections",
            Loss::Messages | Loss::Unread => "messages",
            Loss::Names => "names",
            Loss::TagRate | Loss::TagDepth => "tags",
            Loss::MarkRate | Loss::Late => "marks",
            Loss::ScalarNames | Loss::Values => "scalars",
            Loss::Replies => "replies",
        }
    }

    /// Why it was not recorded, in a few words.
    pub fn reason(self) -> String {
        match self {
            Loss::Connections => format!(
                "more than {} connections of one process or {} of all",
                limits::CONNECTIONS_PER_PROCESS,
                limits::CONNECTIONS
            ),
            Loss::Clients => {
                format!("more than {} clients began in one second", limits::STACKS_PER_SECOND)
            }
            Loss::Messages => "not a message of the control protocol".to_owned(),
            Loss::Names => format!(
                "empty, longer than {} bytes, or with a control character ('/' in a tag)",
                limits::NAME_BYTES
            ),
            Loss::TagRate => format!("more than {} a second from one process", limits::TAGS_PER_SECOND),
            Loss::TagDepth => format!("nested deeper than {}", limits::TAG_DEPTH),
            Loss::MarkRate => format!("more than {} a second from one process", limits::MARKS_PER_SECOND),
            Loss::ScalarNames => format!("more than {} different names", limits::SCALAR_NAMES),
            Loss::Values => "the value is not a number".to_owned(),
            Loss::Unread => "the job sent them faster than gpurun read them".to_owned(),
            Loss::Replies => "the job did not read them".to_owned(),
            Loss::Late => "not processed before the end of the run".to_owned(),
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of the job: {}", self.subject(), self.reason())
    }
}

/// How much was lost, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses([u64; Loss::ALL.len()]);

impl Losses {
    /// Counts `n` more.
    pub fn add(&mut self, loss: Loss, n: u64) {
        self.0[loss as usize] += n;
    }

    /// How much was lost for this reason.
    #[cfg(test)]
    pub fn get(&self, loss: Loss) -> u64 {
        self.0[loss as usize]
    }

    /// The reasons that occurred, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (Loss, u64)> + '_ {
        Loss::ALL.into_iter().zip(self.0).filter(|(_, n)| *n > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_count_of_its_own() {
        let mut losses = Losses::default();
        for (n, loss) in Loss::ALL.into_iter().enumerate() {
            losses.add(loss, n as u64);
        }
        losses.add(Loss::Late, 1);
        let counts: Vec<u64> = losses.iter().map(|(_, n)| n).collect();
        assert_eq!(counts, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12]);
        assert_eq!((losses.get(Loss::Clients), losses.get(Loss::Late)), (1, 12));
    }
}
