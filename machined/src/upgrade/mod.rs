//! From one version to the next: labels of an installer image, checks, the installer's run, the hand-over between generations, and the gate
//! that the next one has to pass. `trial` draws what a version has to prove, and how the machine goes on after that.

mod check;
mod error;
mod failed;
mod floor;
mod gate;
pub mod handover;
mod history;
pub mod installer;
mod installer_output;
mod origin;
mod prepared;
mod progress_sink;
mod record;
mod release_rules;
pub mod replacement;
mod rootfs_trust;
mod running;
mod starts;
mod state;
mod steadiness;
pub mod trial;
mod unpacked;
mod wrong_tag;

pub use check::{Candidate, INSTALLER_FILES, Plan, Refusal, Resources, Room, Route, check};
pub use error::{UpgradeError, UpgradeMode, UpgradeRequest};
pub use failed::FailedImages;
pub use floor::Floor;
pub use gate::{Gate, GateProbe, Steady};
pub use handover::{Handover, PendingUpgrade};
pub use history::{HistoryKeeper, Outcome, UpgradeFact};
pub use installer::EspForInstaller;
pub use installer_output::InstallerOutput;
pub use origin::{ReleaseOrigin, ReleaseOrigins, created};
pub use prepared::Prepared;
pub use progress_sink::ProgressSink;
pub use record::UpgradeRecord;
pub use release_rules::{below_floor, objections};
pub use rootfs_trust::{RootfsTrust, TrustedRootfs, Untrusted};
pub use running::RunningSystem;
pub use starts::{Start, StartCounts};
pub use state::UpgradeState;
pub use steadiness::Run;
pub use unpacked::{Unpacked, is_full};
pub use wrong_tag::WrongTag;
