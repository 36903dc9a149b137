//! Power cuts of a node: its disk is recorded while it lives, every state that a cut may have left is judged, and some of
//! them are really booted.
//!
//! ```text
//! RecordedNode ─► Scenario ─► JudgedScenario ─► samples ─► boot_samples, through the firmware
//!  stages          states      verdicts           of every kind
//! ```
//!
//! The crate `instar-power-cuts` defines a state and judges it; it knows of no machine.

mod boot;
mod images;
mod recorded_node;
mod sample;
mod scenario;
mod swap;
mod upgrade;

pub use boot::{Medium, boot_samples};
pub use images::{IMAGES, IMPORTED, PINNED, import, is_collected, pin, push_images_on_one_base};
pub use instar_power_cuts::Tears;
pub use recorded_node::{Recorded, RecordedNode};
pub use sample::Sample;
pub use scenario::{JudgedScenario, Scenario, Setting};
pub use swap::BEFORE_CHANGE;
pub use upgrade::seen;
