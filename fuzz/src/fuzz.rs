//! The fuzzer of one decoder, which `INSTAR_DECODER` names: `make fuzz` runs one after the other.

#![no_main]

use std::sync::OnceLock;

use instar_fuzz::{Decoder, named};
use libfuzzer_sys::fuzz_target;

static DECODER: OnceLock<&'static Decoder> = OnceLock::new();

fuzz_target!(|bytes: &[u8]| {
    let decoder = DECODER.get_or_init(|| {
        let name = std::env::var("INSTAR_DECODER").unwrap_or_default();
        named(&name).unwrap_or_else(|| {
            eprintln!("INSTAR_DECODER={name:?} names no decoder");
            std::process::exit(2)
        })
    });
    (decoder.decode)(bytes);
});
