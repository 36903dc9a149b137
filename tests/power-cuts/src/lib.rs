//! The possible content of a disk after a power cut, and a machine's fate with it.
//!
//! ```text
//! base disk + write log ─► Recording ─► every state that a power cut may leave ─► judge ─► boots | installs | fails
//!                          recording.rs        states.rs                          judge.rs
//! ```
//!
//! A disk promises two things: a write before a flush that has ended is there, and a sector of 512 bytes is written
//! whole or not at all. So the states are: every prefix of the writes; every prefix without one of the writes since the
//! last flush; every prefix whose last write was torn between two sectors, with its head there, or its tail.
//!
//! No machine runs here. A state is a value, and reading it is a function of the recording; thousands of them are
//! judged in seconds, since most differ from another one in one partition only, and a partition's content is judged
//! once; that of the EFI system partition once for all states that are the same in the sectors that its judge has read.
//!
//! The decision: record the writes once and compute every state. Cutting a machine's power at random moments was the other choice: a
//! night of it visits some hundred states, and the one that breaks is among thousands.

mod content;
mod esp_reader;
mod ext4;
mod fat_volume;
mod judge;
mod memory;
mod parallel;
mod read_only;
mod recording;
mod records;
mod region;
mod states;
mod store;
mod table;
mod write_log;

pub use ext4::ToolError;
pub use fat_volume::FatVolume;
pub use judge::{Expected, Judge, JudgeError, Judged, Verdict};
pub use recording::{Recording, RecordingError};
pub use states::{DiskState, Fault, Kind, Side, Tears, states};
pub use write_log::{Data, Entry, LogError, Write, WriteLog};

/// The unit that a disk writes whole or not at all, bytes. Everything here counts in it.
pub const SECTOR: u64 = 512;
