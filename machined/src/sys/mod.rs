//! The bottom: the only place for `unsafe`, one file per kernel facility.

pub mod block;
pub mod container;
pub mod inherited;
pub mod kexec;
pub mod listen;
pub mod oom_score;
pub mod own_mounts;
pub mod packet_socket;
pub mod readiness;
pub mod text;
pub mod virtual_terminal;
