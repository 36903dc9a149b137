//! `make fuzz`: lets libFuzzer look for bytes that break a decoder, one decoder after the other, starting from the
//! inputs that earlier runs found. `run-fuzzers FUZZER SECONDS [NAME…]`: SECONDS for each decoder; all decoders unless
//! some are named.

use std::path::Path;
use std::process::{Command, ExitCode};

use instar_fuzz::{DECODERS, Decoder, named};

/// Limit in seconds for one input: a decoder that takes longer could be kept busy by a hostile peer.
const SLOWEST: u32 = 10;
/// Limit in MiB for one input.
const LARGEST: u32 = 1024;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<bool, Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let program = words.next().ok_or("where is the fuzzer?")?;
    let seconds: u32 = words
        .next()
        .ok_or("how many seconds for each decoder?")?
        .parse()?;
    let chosen: Vec<Decoder> = words
        .map(|name| named(&name).copied().ok_or(format!("no decoder {name}")))
        .collect::<Result<_, _>>()?;
    let chosen = if chosen.is_empty() {
        DECODERS.to_vec()
    } else {
        chosen
    };
    let mut held = true;
    for decoder in chosen {
        let corpus = Path::new("target/fuzz/corpus").join(decoder.name);
        std::fs::create_dir_all(&corpus)?;
        for (number, seed) in (decoder.seeds)().into_iter().enumerate() {
            std::fs::write(corpus.join(format!("seed-{number}")), seed)?;
        }
        let log = corpus.with_extension("log");
        let broken = corpus.with_extension("broken-");
        let status = Command::new(&program)
            .arg(&corpus)
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-timeout={SLOWEST}"))
            .arg(format!("-rss_limit_mb={LARGEST}"))
            .arg(format!("-artifact_prefix={}", broken.display()))
            .arg("-print_final_stats=1")
            .env("INSTAR_DECODER", decoder.name)
            .stderr(std::fs::File::create(&log)?)
            .status()?;
        let text = String::from_utf8_lossy(&std::fs::read(&log)?).into_owned();
        let tried = text
            .lines()
            .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))
            .map_or("?", str::trim);
        let verdict = if status.success() { "holds" } else { "BROKEN" };
        println!("{:<20} {verdict} after {tried} inputs", decoder.name);
        if !status.success() {
            held = false;
            println!("  see {} and {}*", log.display(), broken.display());
        }
    }
    Ok(held)
}
