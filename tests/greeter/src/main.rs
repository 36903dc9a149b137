//! A service for containers in tests and in `make run`: greets over HTTP, and reports the machine as the container sees it.
//!
//! The decision: one static program for all that tests ask of a container. An image with a shell and its tools was the other choice: tests would
//! need a registry outside, and a shell tells neither how often a file was read nor for how long it was kept from running.
//!
//! `greeter look ADDRESS…` reports the links, whether the container reaches itself, and the addresses that it reaches, then
//! waits to be ended. `greeter has PATH` succeeds if the file exists. `greeter stay PROGRAM ARGUMENT…` runs a program to its
//! end, then stays for ever. `greeter flood` writes to its standard error for ever. `greeter bomb` starts as many threads as
//! its limit allows, and goes on trying. `greeter slow SECONDS` ends this long after SIGTERM. `greeter beat PORT` reports how
//! long it was kept from running (`beat.rs`). `greeter hold ADDRESS` holds a connection to a beat, and ends when it is lost
//! (`hold.rs`). `greeter asks ADDRESS PORT` asks a beat on and on, and reports how long the answers stayed away (`asks.rs`). `greeter halves MILLISECONDS` counts for ever: each line is written in two
//! halves, with that pause between them and none before the next line. `greeter pause` waits to be ended. `greeter eat` takes memory for ever. `greeter place FILE TEXT`
//! replaces a file whole, then waits to be ended. `greeter [PORT [SECONDS [FILE]]]` listens, on 8080 by default. Its answers to a GET:
//!
//! | path | answer |
//! | --- | --- |
//! | `/` | a greeting with the host name and the kernel's release |
//! | `/since` | when it was started, in nanoseconds since 1970, and its process number |
//! | `/read/PATH` | the file `/PATH` as the container sees it, 404 with the reason when it cannot |
//! | `/list/PATH` | the names in the directory `/PATH`, one per line |
//! | `/owner/PATH` | the owner of `/PATH`, as `UID:GID` |
//! | `/stat/PATH` | type and mode (octal), bytes and bytes on disk of `/PATH` itself, as `MODE SIZE DISK` |
//! | `/write/PATH` | the result of writing a line to the file `/PATH`, or the text behind a `?` |
//! | `/fill/PATH` | how many bytes fitted into the file `/PATH` before the disk was full |
//! | `/spread/PATH` | how many empty files fitted into the directory `/PATH` |
//! | `/remove/PATH` | the result of removing the file `/PATH` |
//! | `/rename/PATH` | the result of giving the file `/PATH` the name behind a `?` |
//! | `/link/PATH` | the result of making the symbolic link `/PATH` to the text behind a `?` |
//! | `/socket/FAMILY` | the result of opening a socket of the family with this number |
//! | `/pipe/PATH` | the result of making a named pipe `/PATH` |
//! | `/sync/PATH` | as `/write`, once the text is on the disk |
//! | `/watch/PATH` | how often the file `/PATH` was read since the first time, and how often its content had changed (`watch.rs`) |
//! | `/attach/PATH` | the block device that it has made of a new file `/PATH`; the device ends with the greeter |
//! | `/bomb` | how many threads it could start until its limit; they stay |
//! | `/exit/CODE` | nothing: it ends with this code |
//!
//! SIGTERM ends it with 0, after SECONDS; as its last act it writes a line to FILE.

mod asks;
mod beat;
mod hold;
mod watch;

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use loopdev::LoopControl;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::mkfifo;

/// When the program was started.
static STARTED: OnceLock<SystemTime> = OnceLock::new();

fn main() -> ExitCode {
    STARTED.get_or_init(SystemTime::now);
    let mut arguments = std::env::args().skip(1);
    let port = match arguments.next() {
        Some(word) if word == "slow" => {
            let seconds = arguments.next().and_then(|text| text.parse().ok());
            end_when_asked(Duration::from_secs(seconds.unwrap_or(8)));
            wait_for_ever()
        }
        Some(word) if word == "flood" => flood(),
        Some(word) if word == "halves" => {
            end_when_asked(Duration::ZERO);
            let pause = arguments.next().and_then(|text| text.parse().ok());
            let ended = count_in_halves(Duration::from_millis(pause.unwrap_or(10)));
            eprintln!("greeter: counted to here: {ended:?}");
            return ExitCode::FAILURE;
        }
        Some(word) if word == "bomb" => {
            end_when_asked(Duration::ZERO);
            bomb()
        }
        Some(word) if word == "beat" => {
            end_when_asked(Duration::ZERO);
            let ended = beat::answer(&arguments.next().unwrap_or_default());
            eprintln!("greeter: no beat: {ended:?}");
            return ExitCode::FAILURE;
        }
        Some(word) if word == "asks" => {
            end_when_asked(Duration::ZERO);
            let address = arguments.next().unwrap_or_default();
            let ended = asks::ask(address, &arguments.next().unwrap_or_default());
            eprintln!("greeter: asks no more: {ended:?}");
            return ExitCode::FAILURE;
        }
        Some(word) if word == "hold" => {
            end_when_asked(Duration::ZERO);
            let ended = hold::hold(&arguments.next().unwrap_or_default());
            eprintln!("greeter: the connection is lost: {ended:?}");
            return ExitCode::FAILURE;
        }
        Some(word) if word == "look" => {
            end_when_asked(Duration::ZERO);
            return look(arguments);
        }
        Some(word) if word == "has" => {
            let there = arguments.all(|path| fs::exists(path).unwrap_or(false));
            return if there {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            };
        }
        Some(word) if word == "pause" => {
            end_when_asked(Duration::ZERO);
            wait_for_ever()
        }
        Some(word) if word == "place" => {
            end_when_asked(Duration::ZERO);
            return place(arguments);
        }
        Some(word) if word == "eat" => eat(),
        Some(word) if word == "stay" => return stay(arguments),
        Some(port) => port,
        None => "8080".to_owned(),
    };
    let seconds = arguments.next().and_then(|seconds| seconds.parse().ok());
    end_in_order(Duration::from_secs(seconds.unwrap_or(0)), arguments.next());
    greet(&port)
}

/// Greets whoever connects to the port.
fn greet(port: &str) -> ExitCode {
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

fn end_when_asked(after: Duration) {
    end_in_order(after, None);
}

/// The first process of a container gets only the signals that it waits for or handles. The file tells that it has ended in order.
fn end_in_order(after: Duration, file: Option<String>) {
    let mut asked = SigSet::empty();
    asked.add(Signal::SIGTERM);
    if asked.thread_block().is_ok() {
        let listening = std::thread::Builder::new().spawn(move || {
            if asked.wait().is_ok() {
                println!("greeter: asked to end");
                std::thread::sleep(after);
                if let Some(Err(error)) = file.map(add_last_line) {
                    println!("greeter: its last line is lost: {error}");
                }
                std::process::exit(0);
            }
        });
        // A bomb that starts last finds no thread left: it has to say that instead of dying of it.
        if let Err(error) = listening {
            println!("greeter: nobody hears SIGTERM: {error}");
        }
    }
}

fn add_last_line(file: String) -> Result<()> {
    let mut file = fs::File::options().create(true).append(true).open(file)?;
    file.write_all(b"ended in order\n")?;
    file.sync_all()
}

/// Puts a file where other programs find it only whole, and waits to be ended.
fn place(mut arguments: impl Iterator<Item = String>) -> ExitCode {
    let file = arguments.next().unwrap_or_default();
    let text = arguments.next().unwrap_or_default();
    let part = format!("{file}.part");
    if let Err(error) = fs::write(&part, text).and_then(|()| fs::rename(&part, &file)) {
        eprintln!("greeter: cannot place {file}: {error}");
        return ExitCode::FAILURE;
    }
    println!("greeter: placed {file}");
    wait_for_ever()
}

/// Runs the program and never ends, however the program ended.
fn stay(mut command: impl Iterator<Item = String>) -> ExitCode {
    let program = command.next().unwrap_or_default();
    match Command::new(&program).args(command).status() {
        Ok(status) => println!("greeter: {program} ended with {status}"),
        Err(error) => println!("greeter: {program} does not run: {error}"),
    }
    loop {
        std::thread::park();
    }
}

/// Reports the network as this container sees it.
fn look(others: impl Iterator<Item = String>) -> ExitCode {
    let links = names("/sys/class/net").unwrap_or_else(|error| format!("{error}"));
    println!("greeter: links: {}", links.trim_end().replace('\n', " "));
    let itself = TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| TcpStream::connect(listener.local_addr()?));
    for (name, reached) in std::iter::once(("itself".to_owned(), itself))
        .chain(others.map(|address| (address.clone(), TcpStream::connect(address))))
    {
        match reached {
            Ok(_) => println!("greeter: reaches {name}"),
            Err(error) => println!("greeter: does not reach {name}: {error}"),
        }
    }
    println!("greeter: looked");
    wait_for_ever()
}

fn wait_for_ever() -> ! {
    loop {
        std::thread::park();
    }
}

/// Writes more than any reader can take.
fn flood() -> ! {
    let line = [b'y'; 4096];
    loop {
        if std::io::stderr().write_all(&line).is_err() {
            std::process::exit(1);
        }
    }
}

fn eat() -> ! {
    let mut eaten = Vec::new();
    loop {
        // Not zeros: the kernel would give these no memory.
        eaten.push(vec![1_u8; 1 << 20]);
    }
}

/// Keeps half a line written at any moment.
fn count_in_halves(pause: Duration) -> Result<()> {
    let mut output = std::io::stdout();
    for number in 0_u64.. {
        write!(output, "line {number} ")?;
        output.flush()?;
        std::thread::sleep(pause);
        writeln!(output, "is whole")?;
    }
    Ok(())
}

/// Takes every process number, and each one that becomes free.
fn bomb() -> ! {
    let mut threads = 0_u32;
    loop {
        let (more, error) = take_all_threads();
        threads += more;
        println!("greeter: {threads} threads, no more: {error}");
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Returns the number of threads started, and the error of the next.
fn take_all_threads() -> (u32, std::io::Error) {
    let mut threads = 0;
    loop {
        let started = std::thread::Builder::new()
            .stack_size(16 * 1024)
            .spawn(|| wait_for_ever());
        match started {
            Ok(_) => threads += 1,
            Err(error) => return (threads, error),
        }
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

/// An act: the path's prefix, a function of the rest of the path, and the HTTP status when the function fails.
type Act = (&'static str, fn(&str) -> Result<String>, &'static str);

const NOT_FOUND: &str = "404 Not Found";
const FORBIDDEN: &str = "403 Forbidden";

const ACTS: [Act; 18] = [
    ("/since", |_| Ok(since()), NOT_FOUND),
    ("/read", |file| fs::read_to_string(file), NOT_FOUND),
    ("/list", names, NOT_FOUND),
    ("/owner", owner, NOT_FOUND),
    ("/stat", stat, NOT_FOUND),
    (
        "/socket/",
        |family| open_socket(family.parse().unwrap_or(0)).map(|()| format!("{family}: opened\n")),
        FORBIDDEN,
    ),
    (
        "/pipe",
        |file| make_pipe(file).map(|()| format!("{file}: made\n")),
        FORBIDDEN,
    ),
    (
        "/fill",
        |file| fill(file).map(|bytes| bytes.to_string()),
        FORBIDDEN,
    ),
    (
        "/spread",
        |directory| spread(directory).map(|files| files.to_string()),
        FORBIDDEN,
    ),
    (
        "/remove",
        |file| fs::remove_file(file).map(|()| format!("{file}: removed\n")),
        FORBIDDEN,
    ),
    ("/watch", watch::watch, NOT_FOUND),
    ("/rename", rename, FORBIDDEN),
    ("/write", write, FORBIDDEN),
    ("/sync", sync, FORBIDDEN),
    ("/link", link, FORBIDDEN),
    ("/attach", attach, FORBIDDEN),
    (
        "/bomb",
        |_| Ok(format!("{} threads\n", take_all_threads().0)),
        FORBIDDEN,
    ),
    (
        "/exit/",
        |code| std::process::exit(code.parse().unwrap_or(1)),
        FORBIDDEN,
    ),
];

fn answer(path: &str) -> (&'static str, String) {
    for (prefix, act, failure) in ACTS {
        if let Some(rest) = path.strip_prefix(prefix) {
            let name = rest.split('?').next().unwrap_or_default();
            return match act(rest) {
                Ok(text) => ("200 OK", text),
                Err(error) => (failure, format!("{name}: {error}\n")),
            };
        }
    }
    ("200 OK", greeting())
}

fn since() -> String {
    let started = STARTED.get_or_init(SystemTime::now);
    let nanoseconds = started
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos());
    format!("{nanoseconds} {}\n", std::process::id())
}

fn greeting() -> String {
    let fact = |name: &str| {
        fs::read_to_string(format!("/proc/sys/kernel/{name}"))
            .map_or("?".to_owned(), |text| text.trim().to_owned())
    };
    format!(
        "hello from {} on kernel {}\n",
        fact("hostname"),
        fact("osrelease")
    )
}

fn owner(file: &str) -> Result<String> {
    let facts = fs::metadata(file)?;
    Ok(format!("{}:{}", facts.uid(), facts.gid()))
}

fn stat(file: &str) -> Result<String> {
    let facts = fs::symlink_metadata(file)?;
    let (mode, size, blocks) = (facts.mode(), facts.size(), facts.blocks());
    Ok(format!("{mode:o} {size} {}", blocks * 512))
}

fn rename(names: &str) -> Result<String> {
    let (from, to) = names.split_once('?').unwrap_or((names, names));
    fs::rename(from, to)?;
    Ok(format!("{from}: is {to}\n"))
}

fn write(file_and_text: &str) -> Result<String> {
    let (file, text) = file_and_text
        .split_once('?')
        .unwrap_or((file_and_text, "written by greeter\n"));
    fs::write(file, text)?;
    Ok(format!("{file}: written\n"))
}

fn sync(file_and_text: &str) -> Result<String> {
    let written = write(file_and_text)?;
    let file = file_and_text.split('?').next().unwrap_or_default();
    fs::File::open(file)?.sync_all()?;
    Ok(written)
}

fn link(link_and_target: &str) -> Result<String> {
    let (link, target) = link_and_target
        .split_once('?')
        .unwrap_or((link_and_target, "/"));
    std::os::unix::fs::symlink(target, link)?;
    Ok(format!("{link}: points to {target}\n"))
}

fn open_socket(family: u16) -> Result<()> {
    let family = rustix::net::AddressFamily::from_raw(family);
    rustix::net::socket(family, rustix::net::SocketType::SEQPACKET, None)?;
    Ok(())
}

/// The major number of loop devices (Documentation/admin-guide/devices.txt).
const LOOP_MAJOR: u64 = 7;

/// Makes a block device of a file. The kernel frees it at the end of this process.
fn attach(file: &str) -> Result<String> {
    fs::write(file, [0; 4096])?;
    // The container has the nodes of those devices alone that there were at its start.
    for number in 1..8 {
        let node = format!("/dev/loop{number}");
        if !Path::new(&node).exists() {
            let device = makedev(LOOP_MAJOR, number);
            mknod(node.as_str(), SFlag::S_IFBLK, Mode::S_IRWXU, device)?;
        }
    }
    let device = LoopControl::open()?.next_free()?;
    device.with().autoclear(true).attach(file)?;
    let path = device.path().unwrap_or_default();
    std::mem::forget(device);
    Ok(format!("{file}: is {}\n", path.display()))
}

/// Makes a named pipe, and its parent directories.
fn make_pipe(file: &str) -> Result<()> {
    if let Some(directory) = Path::new(file).parent() {
        fs::create_dir_all(directory)?;
    }
    Ok(mkfifo(file, Mode::S_IRWXU)?)
}

/// Writes until there is no room for a byte more.
fn fill(file: &str) -> Result<u64> {
    let mut file = fs::File::create(file)?;
    let block = vec![0; 1 << 20];
    let (mut written, mut synced) = (0, None);
    // A sync claims the space that the file system had only reserved, and can leave room again.
    while synced != Some(written) {
        synced = Some(written);
        let mut length = block.len();
        while length > 0 {
            match file.write(&block[..length]) {
                Ok(bytes) => written += bytes as u64,
                Err(error) if error.kind() == ErrorKind::StorageFull => length /= 2,
                Err(error) => return Err(error),
            }
        }
        file.sync_all()?;
    }
    Ok(written)
}

/// Makes empty files until there is no inode for one more.
fn spread(directory: &str) -> Result<u64> {
    fs::create_dir_all(directory)?;
    let mut made = 0;
    loop {
        match fs::File::create(format!("{directory}/{made}")) {
            Ok(_) => made += 1,
            Err(error) if error.kind() == ErrorKind::StorageFull => return Ok(made),
            Err(error) => return Err(error),
        }
    }
}

fn names(directory: &str) -> Result<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        names.push(entry?.file_name().to_string_lossy().into_owned() + "\n");
    }
    names.sort();
    Ok(names.concat())
}
