//! A beat that measures how long this process was kept from running, by the kernel's clock.
//!
//! A thread sleeps for a millisecond at a time, and notes the longest beat. Each byte of a client is answered with a
//! line: the microseconds by which the longest beat since the last answer was too long.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const BEAT: Duration = Duration::from_millis(1);

/// Beats, and answers one connection after the other, for ever.
pub(crate) fn answer(port: &str) -> std::io::Result<()> {
    println!("greeter: a beat on port {port}");
    tell_the_longest(port, |longest| {
        loop {
            let began = Instant::now();
            std::thread::sleep(BEAT);
            note(longest, began.elapsed().saturating_sub(BEAT));
        }
    })
}

/// Notes a time if it is the longest so far.
pub(crate) fn note(longest: &AtomicU64, time: Duration) {
    let microseconds = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    longest.fetch_max(microseconds, Ordering::Relaxed);
}

/// Measures on a thread, and tells the longest time that was noted to one connection after the other, for ever.
pub(crate) fn tell_the_longest(
    port: &str,
    measure: impl FnOnce(&AtomicU64) + Send + 'static,
) -> std::io::Result<()> {
    let listener = TcpListener::bind(format!("0.0.0.0:{port}"))?;
    let longest = Arc::new(AtomicU64::new(0));
    let noted = longest.clone();
    std::thread::Builder::new().spawn(move || measure(&noted))?;
    for stream in listener.incoming() {
        if let Err(error) = stream.and_then(|stream| tell(stream, &longest)) {
            eprintln!("greeter: {error}");
        }
    }
    Ok(())
}

fn tell(mut stream: TcpStream, longest: &AtomicU64) -> std::io::Result<()> {
    let mut byte = [0];
    while stream.read(&mut byte)? > 0 {
        let late = longest.swap(0, Ordering::Relaxed);
        stream.write_all(format!("{late}\n").as_bytes())?;
    }
    Ok(())
}
