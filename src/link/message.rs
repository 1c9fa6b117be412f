//! The messages and their encoding. Pure.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use crate::model::run::JobExit;
use crate::model::time::{Mono, Wall};

/// How many processes left behind are named at most.
pub const MAX_LEFT: usize = 128;

/// The longest message to the sidecar, in bytes: [`ToSidecar::Left`] with [`MAX_LEFT`] process ids.
const PACKET: usize = 8 + 4 * MAX_LEFT;

/// The job's main process, and when it was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Process id.
    pub pid: i32,
    /// Just before it was started, on the monotonic clock.
    pub mono: Mono,
    /// The same instant on the wall clock.
    pub wall: Wall,
}

/// What `wait4` told of a process that the minder reaped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReapedProcess {
    /// Process id.
    pub pid: i32,
    /// User plus system CPU seconds, those of the children it waited for included.
    pub cpu_seconds: f64,
    /// Peak resident memory in KiB: the largest of it and the children it waited for.
    pub max_rss_kib: u64,
    /// Blocks of 512 bytes read from storage.
    pub blocks_read: u64,
    /// Blocks of 512 bytes written to storage.
    pub blocks_written: u64,
}

/// A signal that asks the job to end, as the minder got it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopRequest {
    /// Signal number.
    pub signal: i32,
    /// Process id and uid of the sender; 0 as id for one of another PID namespace. `None`: the terminal.
    pub sender: Option<(i32, u32)>,
}

/// From the minder.
#[derive(Clone, Debug, PartialEq)]
pub enum ToSidecar {
    /// The process that is about to execute the job; it sends this itself.
    Starting(Job),
    /// That process could not execute the job; it sends this itself, too.
    NotStarted,
    /// The job runs.
    Started(Job),
    /// A process of the job was reaped.
    Reaped(ReapedProcess),
    /// A signal that asks a program to end has come for the job.
    Signalled(StopRequest),
    /// The job's main process was stopped.
    Suspended(Mono),
    /// It runs again.
    Resumed(Mono),
    /// The job's main process has ended; `None`: how cannot be known.
    Ended(Option<JobExit>),
    /// These processes of the job still run; comes after [`ToSidecar::Ended`], also when there are none.
    Left(Vec<i32>),
    /// The user does not want to wait for the files.
    GiveUp,
    /// To be answered with [`ToMinder::Pong`] once all signals that have come are reported.
    Ping(u32),
}

/// A signal that the sidecar got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Witnessed {
    /// Signal number.
    pub signal: i32,
    /// Process id of the sender; 0 for one outside this PID namespace.
    pub sender: i32,
    /// When there was no signal to read for the last time before: it was sent after that,
    pub since: Mono,
    /// and before it was read.
    pub at: Mono,
}

/// What the job is started with. Comes with the lease's descriptors, which the job inherits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// Variables to set in the job's environment.
    pub env: Vec<(OsString, OsString)>,
    /// The job's socket, to be removed if the sidecar cannot.
    pub socket: Option<PathBuf>,
    /// Logs that `gpurun recover` can finish if the sidecar cannot.
    pub journals: Vec<PathBuf>,
}

/// From the sidecar, or from a child that answers one question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToMinder {
    /// A call of the driver begins (`true`) or has ended.
    DriverCall(bool),
    /// The job can start.
    Ready(Ready),
    /// A piece of what belongs on standard output.
    Output(Vec<u8>),
    /// There is no job to start, or the question is answered: end with this status.
    Finish(u8),
    /// A signal reached the sidecar.
    Witnessed(Witnessed),
    /// The answer to [`ToSidecar::Ping`].
    Pong(u32),
    /// The files are finished.
    Done,
}

/// A message to the sidecar as bytes, without a heap.
#[derive(Debug)]
pub(super) struct Packet {
    bytes: [u8; PACKET],
    length: usize,
}

impl Packet {
    fn new(tag: u8) -> Self {
        let mut packet = Self { bytes: [0; PACKET], length: 0 };
        packet.put(&[tag]);
        packet
    }

    fn put(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        if let Some(room) = self.bytes.get_mut(self.length..end) {
            room.copy_from_slice(bytes);
            self.length = end;
        }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// Reads fields one after the other; `None` where the packet is too short.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn i32(&mut self) -> Option<i32> {
        self.array().map(i32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn job(&mut self) -> Option<Job> {
        let (pid, mono) = (self.i32()?, Mono(self.u64()?));
        Some(Job { pid, mono, wall: Wall(i64::from_le_bytes(self.array()?)) })
    }

    fn text(&mut self) -> Option<OsString> {
        let length = usize::try_from(self.u32()?).ok()?;
        self.take(length).map(|bytes| OsString::from_vec(bytes.to_vec()))
    }

    fn at_end(&self) -> bool {
        self.0.is_empty()
    }
}

impl ToSidecar {
    pub(super) fn encode(&self) -> Packet {
        let tag = match self {
            Self::Started(_) => 1,
            Self::Reaped(_) => 2,
            Self::Suspended(_) => 3,
            Self::Resumed(_) => 4,
            Self::Ended(_) => 5,
            Self::Left(_) => 6,
            Self::GiveUp => 7,
            Self::Ping(_) => 8,
            Self::Starting(_) => 9,
            Self::NotStarted => 10,
            Self::Signalled(_) => 11,
        };
        let mut packet = Packet::new(tag);
        match self {
            Self::Starting(job) | Self::Started(job) => {
                packet.put(&job.pid.to_le_bytes());
                packet.put(&job.mono.0.to_le_bytes());
                packet.put(&job.wall.0.to_le_bytes());
            }
            Self::Reaped(reaped) => {
                packet.put(&reaped.pid.to_le_bytes());
                packet.put(&reaped.cpu_seconds.to_le_bytes());
                packet.put(&reaped.max_rss_kib.to_le_bytes());
                packet.put(&reaped.blocks_read.to_le_bytes());
                packet.put(&reaped.blocks_written.to_le_bytes());
            }
            Self::Signalled(StopRequest { signal, sender }) => {
                packet.put(&signal.to_le_bytes());
                if let Some((pid, uid)) = sender {
                    packet.put(&pid.to_le_bytes());
                    packet.put(&uid.to_le_bytes());
                }
            }
            Self::Suspended(at) | Self::Resumed(at) => packet.put(&at.0.to_le_bytes()),
            Self::Ended(None) => packet.put(&[2, 0]),
            Self::Ended(Some(JobExit::Code(code))) => packet.put(&[0, *code]),
            Self::Ended(Some(JobExit::Signal { signal, core })) => {
                packet.put(&[1, u8::from(*core)]);
                packet.put(&signal.to_le_bytes());
            }
            Self::Left(pids) => pids.iter().take(MAX_LEFT).for_each(|pid| packet.put(&pid.to_le_bytes())),
            Self::GiveUp | Self::NotStarted => {}
            Self::Ping(number) => packet.put(&number.to_le_bytes()),
        }
        packet
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let message = match fields.u8()? {
            1 => Self::Started(fields.job()?),
            2 => Self::Reaped(ReapedProcess {
                pid: fields.i32()?,
                cpu_seconds: f64::from_le_bytes(fields.array()?),
                max_rss_kib: fields.u64()?,
                blocks_read: fields.u64()?,
                blocks_written: fields.u64()?,
            }),
            3 => Self::Suspended(Mono(fields.u64()?)),
            4 => Self::Resumed(Mono(fields.u64()?)),
            5 => match (fields.u8()?, fields.u8()?) {
                (0, code) => Self::Ended(Some(JobExit::Code(code))),
                (1, core) => Self::Ended(Some(JobExit::Signal { signal: fields.i32()?, core: core != 0 })),
                (2, 0) => Self::Ended(None),
                _ => return None,
            },
            6 => {
                let mut pids = Vec::new();
                while !fields.at_end() {
                    pids.push(fields.i32()?);
                }
                Self::Left(pids)
            }
            7 => Self::GiveUp,
            8 => Self::Ping(fields.u32()?),
            9 => Self::Starting(fields.job()?),
            10 => Self::NotStarted,
            11 => {
                let signal = fields.i32()?;
                let sender = if fields.at_end() { None } else { Some((fields.i32()?, fields.u32()?)) };
                Self::Signalled(StopRequest { signal, sender })
            }
            _ => return None,
        };
        fields.at_end().then_some(message)
    }
}

fn put_text(bytes: &mut Vec<u8>, text: &[u8]) {
    bytes.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend(text);
}

impl ToMinder {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Self::DriverCall(begins) => bytes.extend([1, u8::from(*begins)]),
            Self::Ready(ready) => ready.encode(&mut bytes),
            Self::Output(piece) => {
                bytes.push(3);
                bytes.extend(piece);
            }
            Self::Finish(code) => bytes.extend([4, *code]),
            Self::Witnessed(seen) => {
                bytes.push(5);
                bytes.extend(seen.signal.to_le_bytes());
                bytes.extend(seen.sender.to_le_bytes());
                bytes.extend(seen.since.0.to_le_bytes());
                bytes.extend(seen.at.0.to_le_bytes());
            }
            Self::Pong(number) => {
                bytes.push(6);
                bytes.extend(number.to_le_bytes());
            }
            Self::Done => bytes.push(7),
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let message = match fields.u8()? {
            1 => Self::DriverCall(fields.u8()? != 0),
            2 => Self::Ready(Ready::decode(&mut fields)?),
            3 => Self::Output(std::mem::take(&mut fields.0).to_vec()),
            4 => Self::Finish(fields.u8()?),
            5 => Self::Witnessed(Witnessed {
                signal: fields.i32()?,
                sender: fields.i32()?,
                since: Mono(fields.u64()?),
                at: Mono(fields.u64()?),
            }),
            6 => Self::Pong(fields.u32()?),
            7 => Self::Done,
            _ => return None,
        };
        fields.at_end().then_some(message)
    }
}

impl Ready {
    fn encode(&self, bytes: &mut Vec<u8>) {
        let count = |length: usize| u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
        bytes.push(2);
        bytes.extend(count(self.env.len()));
        for (name, value) in &self.env {
            put_text(bytes, name.as_bytes());
            put_text(bytes, value.as_bytes());
        }
        put_text(bytes, self.socket.as_deref().map_or(&[], |path| path.as_os_str().as_bytes()));
        bytes.extend(count(self.journals.len()));
        for path in &self.journals {
            put_text(bytes, path.as_os_str().as_bytes());
        }
    }

    fn decode(fields: &mut Fields<'_>) -> Option<Self> {
        let mut env = Vec::new();
        for _ in 0..fields.u32()? {
            env.push((fields.text()?, fields.text()?));
        }
        let socket = Some(PathBuf::from(fields.text()?)).filter(|path| !path.as_os_str().is_empty());
        let mut journals = Vec::new();
        for _ in 0..fields.u32()? {
            journals.push(PathBuf::from(fields.text()?));
        }
        Some(Self { env, socket, journals })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn to_sidecar() -> impl Strategy<Value = ToSidecar> {
        let job = (any::<i32>(), any::<u64>(), any::<i64>()).prop_map(|(pid, mono, wall)| Job {
            pid,
            mono: Mono(mono),
            wall: Wall(wall),
        });
        let reaped = (any::<i32>(), 0.0..1e9f64, any::<u64>(), any::<u64>(), any::<u64>()).prop_map(
            |(pid, cpu_seconds, max_rss_kib, blocks_read, blocks_written)| ReapedProcess {
                pid,
                cpu_seconds,
                max_rss_kib,
                blocks_read,
                blocks_written,
            },
        );
        let exit = prop_oneof![
            any::<u8>().prop_map(JobExit::Code),
            (1..65i32, any::<bool>()).prop_map(|(signal, core)| JobExit::Signal { signal, core }),
        ];
        prop_oneof![
            job.clone().prop_map(ToSidecar::Starting),
            job.prop_map(ToSidecar::Started),
            reaped.prop_map(ToSidecar::Reaped),
            (1..65i32, prop::option::of(any::<(i32, u32)>()))
                .prop_map(|(signal, sender)| ToSidecar::Signalled(StopRequest { signal, sender })),
            any::<u64>().prop_map(|at| ToSidecar::Suspended(Mono(at))),
            any::<u64>().prop_map(|at| ToSidecar::Resumed(Mono(at))),
            prop::option::of(exit).prop_map(ToSidecar::Ended),
            prop::collection::vec(any::<i32>(), 0..=MAX_LEFT).prop_map(ToSidecar::Left),
            Just(ToSidecar::GiveUp),
            Just(ToSidecar::NotStarted),
            any::<u32>().prop_map(ToSidecar::Ping),
        ]
    }

    fn to_minder() -> impl Strategy<Value = ToMinder> {
        let text = || prop::collection::vec(any::<u8>(), 0..20).prop_map(OsString::from_vec);
        let path =
            || prop::collection::vec(any::<u8>(), 1..20).prop_map(|b| PathBuf::from(OsString::from_vec(b)));
        let ready = (
            prop::collection::vec((text(), text()), 0..4),
            prop::option::of(path()),
            prop::collection::vec(path(), 0..3),
        )
            .prop_map(|(env, socket, journals)| Ready { env, socket, journals });
        prop_oneof![
            any::<bool>().prop_map(ToMinder::DriverCall),
            ready.prop_map(ToMinder::Ready),
            prop::collection::vec(any::<u8>(), 0..100).prop_map(ToMinder::Output),
            any::<u8>().prop_map(ToMinder::Finish),
            (any::<i32>(), any::<i32>(), any::<u64>(), any::<u64>()).prop_map(
                |(signal, sender, since, at)| {
                    ToMinder::Witnessed(Witnessed { signal, sender, since: Mono(since), at: Mono(at) })
                }
            ),
            any::<u32>().prop_map(ToMinder::Pong),
            Just(ToMinder::Done),
        ]
    }

    proptest! {
        #[test]
        fn what_is_sent_is_what_arrives(down in to_sidecar(), up in to_minder()) {
            prop_assert_eq!(ToSidecar::decode(down.encode().as_bytes()), Some(down));
            prop_assert_eq!(ToMinder::decode(&up.encode()), Some(up));
        }

        #[test]
        fn garbage_is_no_message_and_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = ToSidecar::decode(&bytes);
            if let Some(message) = ToMinder::decode(&bytes) {
                prop_assert!(!bytes.is_empty(), "{message:?}");
            }
        }

        #[test]
        fn a_message_that_is_cut_off_is_none(up in to_minder(), cut in 1usize..10) {
            let bytes = up.encode();
            prop_assume!(!matches!(up, ToMinder::Output(_)));
            prop_assert_eq!(ToMinder::decode(&bytes[..bytes.len().saturating_sub(cut)]), None);
        }
    }

    #[test]
    fn more_processes_than_fit_are_left_out() {
        let many = ToSidecar::Left((0..1000).collect());
        let Some(ToSidecar::Left(pids)) = ToSidecar::decode(many.encode().as_bytes()) else { panic!() };
        assert_eq!(pids, (0..1000).take(MAX_LEFT).collect::<Vec<_>>());
    }
}
