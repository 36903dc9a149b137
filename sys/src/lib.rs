//! The kernel's facilities that take `unsafe`, one file each, for the programs of the root filesystem.
//!
//! The decision: every other crate of those programs forbids `unsafe` and calls a safe function here, so a reader who looks for undefined
//! behaviour has one short crate to read, and each block in it carries its argument. Modules of `unsafe` within machined were the other
//! choice; they keep the promise only as long as a reviewer looks, and apid could not have used them without machined.
//!
//! `confinement` is here although it has no `unsafe`: it is how a program that talks to unknown clients gives up the kernel's facilities,
//! for apid and the dashboard alike. Nor has `overlay` any: machined and kubernetes-init lay extensions over /usr in the same way.

pub mod block;
pub mod confinement;
pub mod container;
pub mod inherited;
pub mod kexec;
pub mod listen;
pub mod oom_score;
pub mod overlay;
pub mod own_mounts;
pub mod packet_socket;
pub mod rcu;
pub mod readiness;
pub mod signals;
pub mod text;
pub mod virtual_terminal;
