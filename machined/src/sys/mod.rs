//! The bottom: the only place for `unsafe`, one file per kernel facility.
