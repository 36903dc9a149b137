//! A service for containers in tests and in `make run`: greets over HTTP, and says what it sees of the machine.
//!
//! `greeter [PORT]`, 8080 by default. Its answers to a GET:
//!
//! | path | answer |
//! | --- | --- |
//! | `/` | a greeting with the host name and the kernel's release |
//! | `/read/PATH` | the file `/PATH` as the container sees it, 404 with the reason when it cannot |
//! | `/list/PATH` | the names in the directory `/PATH`, one per line |
//! | `/write/PATH` | what came of writing a line to the file `/PATH`, or the text behind a `?` |
//! | `/link/PATH` | what came of making the symbolic link `/PATH` to the text behind a `?` |
//! | `/exit/CODE` | nothing: it ends with this code |
//!
//! SIGTERM ends it with 0.

use std::fs;
use std::io::{BufRead, BufReader, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;

use nix::sys::signal::{SigSet, Signal};

fn main() -> ExitCode {
    end_when_asked();
    let port = std::env::args().nth(1).unwrap_or("8080".to_owned());
    let listener = match TcpListener::bind(format!("0.0.0.0:{port}")) {
        Ok(listener) => listener,
        Err(error) => {
            eprintln!("greeter: cannot listen on port {port}: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("greeter: listening on port {port}");
    for stream in listener.incoming() {
        if let Err(error) = stream.and_then(serve) {
            eprintln!("greeter: {error}");
        }
    }
    ExitCode::SUCCESS
}

/// The first process of a container gets only signals that it waits for or handles.
fn end_when_asked() {
    let mut asked = SigSet::empty();
    asked.add(Signal::SIGTERM);
    if asked.thread_block().is_ok() {
        std::thread::spawn(move || {
            if asked.wait().is_ok() {
                println!("greeter: asked to end");
                std::process::exit(0);
            }
        });
    }
}

fn serve(mut stream: TcpStream) -> Result<()> {
    let mut request = BufReader::new(stream.try_clone()?);
    let mut first = String::new();
    request.read_line(&mut first)?;
    let mut header = first.clone();
    while !header.trim().is_empty() {
        header.clear();
        request.read_line(&mut header)?;
    }
    let path = first.split(' ').nth(1).unwrap_or("/");
    println!("greeter: {}", first.trim_end());
    let (status, body) = answer(path);
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

fn answer(path: &str) -> (&'static str, String) {
    if let Some(code) = path.strip_prefix("/exit/") {
        std::process::exit(code.parse().unwrap_or(1));
    }
    if let Some(file) = path.strip_prefix("/read") {
        return match fs::read_to_string(file) {
            Ok(text) => ("200 OK", text),
            Err(error) => ("404 Not Found", format!("{file}: {error}\n")),
        };
    }
    if let Some(directory) = path.strip_prefix("/list") {
        return match names(directory) {
            Ok(text) => ("200 OK", text),
            Err(error) => ("404 Not Found", format!("{directory}: {error}\n")),
        };
    }
    if let Some(file) = path.strip_prefix("/write") {
        let (file, text) = file
            .split_once('?')
            .unwrap_or((file, "written by greeter\n"));
        return match fs::write(file, text) {
            Ok(()) => ("200 OK", format!("{file}: written\n")),
            Err(error) => ("403 Forbidden", format!("{file}: {error}\n")),
        };
    }
    if let Some(link) = path.strip_prefix("/link") {
        let (link, target) = link.split_once('?').unwrap_or((link, "/"));
        return match std::os::unix::fs::symlink(target, link) {
            Ok(()) => ("200 OK", format!("{link}: points to {target}\n")),
            Err(error) => ("403 Forbidden", format!("{link}: {error}\n")),
        };
    }
    let fact = |name: &str| {
        fs::read_to_string(format!("/proc/sys/kernel/{name}"))
            .map_or("?".to_owned(), |text| text.trim().to_owned())
    };
    (
        "200 OK",
        format!(
            "hello from {} on kernel {}\n",
            fact("hostname"),
            fact("osrelease")
        ),
    )
}

fn names(directory: &str) -> Result<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        names.push(entry?.file_name().to_string_lossy().into_owned() + "\n");
    }
    names.sort();
    Ok(names.concat())
}
