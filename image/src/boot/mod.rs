//! Programs that firmware starts: the unified kernel image (UKI), signatures for Secure Boot, and the keys for them.

pub mod authenticode;
pub mod keys;
pub mod signed_data;
pub mod signer;
pub mod uki;
