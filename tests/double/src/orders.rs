//! The commands of a script.

use crate::link::Link;
use crate::report::report;
use crate::saboteur;
use crate::workload;
use anyhow::{Context, Result, bail};
use instar_init_protocol::{
    Domain, End, FdName, Line, NextGeneration, Reply, Request, Scope, Welcome, Workloads,
};
use loopdev::LoopControl;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::Duration;

const SEALS: SealFlags = SealFlags::WRITE
    .union(SealFlags::SHRINK)
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

struct Double {
    link: Link,
    welcome: Option<Welcome>,
    /// The process that the order `orphan` left.
    orphan: Option<i32>,
}

/// Runs a script to its end.
pub(crate) fn run(path: &str) -> Result<ExitCode> {
    let script = fs::read_to_string(path).with_context(|| format!("read {path}"))?;
    let mut double = Double {
        link: Link::take()?,
        welcome: None,
        orphan: None,
    };
    for line in script.lines().filter(|line| !line.trim().is_empty()) {
        if let Some(code) = double
            .line(line)
            .with_context(|| format!("order '{line}'"))?
        {
            return Ok(code);
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Double {
    fn line(&mut self, line: &str) -> Result<Option<ExitCode>> {
        let mut words = line.split_whitespace().peekable();
        while let Some(condition) = words.next_if(|word| word.starts_with(['@', '='])) {
            let welcome = self.welcome.as_ref().context("a condition before hello")?;
            let met = match condition.split_at(1) {
                ("@", reason) => welcome.start.as_str() == reason,
                (_, number) => welcome.generation == number.parse::<u64>()?,
            };
            if !met {
                return Ok(None);
            }
        }
        let words: Vec<&str> = words.collect();
        self.order(&words)
    }

    fn order(&mut self, words: &[&str]) -> Result<Option<ExitCode>> {
        if let ["exit", code] = words {
            return Ok(Some(ExitCode::from(code.parse::<u8>()?)));
        }
        let known = self.tell_init(words)?
            || self.watch_processes(words)?
            || leave(words)?
            || misbehave(words)?;
        if !known {
            bail!("unknown");
        }
        Ok(None)
    }

    /// Sends messages to init, right and wrong ones. Returns `false` for an order that is none of these.
    fn tell_init(&mut self, words: &[&str]) -> Result<bool> {
        match words {
            ["hello"] => self.hello()?,
            ["healthy"] => {
                let boot_id = self
                    .welcome
                    .as_ref()
                    .context("healthy before hello")?
                    .boot_id
                    .clone();
                self.tell(&Request::Healthy { boot_id })?;
            }
            ["healthy-elsewhere"] => {
                let boot_id = "00000000-0000-4000-8000-000000000000".parse()?;
                self.tell(&Request::Healthy { boot_id })?;
            }
            ["give-up", reason @ ..] => {
                let reason = Line::lossy(&reason.join(" "));
                self.tell_last(&Request::GiveUp { reason }, &[])?;
            }
            ["next", image, version, deadline, flaws @ ..] => {
                self.next(image, version, deadline, flaws)?
            }
            ["keep", name, scope] => {
                let memfd = memfd(format!("kept as {name}").as_bytes(), &[])?;
                let request = Request::Keep {
                    name: name.parse()?,
                    scope: scope.parse::<Scope>()?,
                };
                self.tell_with(&request, &[memfd.as_fd()])?;
            }
            ["keep-nothing", name] => {
                self.tell(&Request::Keep {
                    name: name.parse()?,
                    scope: Scope::Machine,
                })?;
            }
            ["drop", name] => self.tell(&Request::Drop {
                name: name.parse::<FdName>()?,
            })?,
            ["raw", text @ ..] => {
                let packet = text.join(" ").replace("\\n", "\n");
                report_answer(&self.link.ask_raw(packet.as_bytes(), &[])?.0);
            }
            ["flood", bytes] => {
                let packet = vec![b'x'; bytes.parse()?];
                report_answer(&self.link.ask_raw(&packet, &[])?.0);
            }
            ["deaf", count] => {
                for _ in 0..count.parse::<u32>()? {
                    self.link.send(&Request::Hello.encode(), &[])?;
                }
            }
            ["shut-link"] => self.link.shut()?,
            ["reboot" | "poweroff" | "halt" | "kexec"] => {
                self.tell_last(&Request::End(words[0].parse::<End>()?), &[])?
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Orders about processes that init adopts. Returns `false` for another order.
    fn watch_processes(&mut self, words: &[&str]) -> Result<bool> {
        match words {
            ["orphan", milliseconds] => {
                let mut parent = Command::new("/sbin/machined");
                let output = parent.args(["parent", milliseconds]).output()?;
                self.orphan = Some(String::from_utf8(output.stdout)?.trim().parse()?);
            }
            ["await-exit"] => match self.link.receive()?.0 {
                Reply::Exited { pid, status } => {
                    let whose = match self.orphan {
                        Some(orphan) if orphan == pid => "the orphan",
                        Some(_) => "another process",
                        None => "a process of before",
                    };
                    report!("{whose} exited with status {status:#x}");
                }
                other => report!("unexpected {other:?}"),
            },
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn hello(&mut self) -> Result<()> {
        // The very next message has to be the answer: init reports exits only after it has welcomed machined.
        self.link.send(&Request::Hello.encode(), &[])?;
        let (reply, descriptors) = self.link.receive()?;
        let Reply::Welcome(welcome) = reply else {
            bail!("answered with {reply:?}");
        };
        let contents = descriptors
            .into_iter()
            .map(content)
            .collect::<Result<Vec<_>>>()?;
        let kept: Vec<String> = welcome
            .kept
            .iter()
            .zip(contents)
            .map(|(name, text)| format!("{name}='{text}'"))
            .collect();
        report!(
            "welcome generation={} start={} deadline={} kept=[{}] failed={} cause={}",
            welcome.generation,
            welcome.start.as_str(),
            welcome.deadline,
            kept.join(" "),
            welcome.failed_version.as_ref().map_or("-", Line::as_str),
            welcome.cause.as_ref().map_or("-", Line::as_str),
        );
        if welcome.workloads == Some(Domain::Kept) {
            report!("the workloads are kept");
        }
        let seen = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        if seen.trim() != welcome.boot_id.as_str() || welcome.boot_id == welcome.kernel_boot_id {
            report!("the boot id is wrong: {seen}");
        }
        self.welcome = Some(welcome);
        Ok(())
    }

    fn tell(&self, request: &Request) -> Result<()> {
        self.tell_with(request, &[])
    }

    fn tell_with(&self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Result<()> {
        report_answer(&self.link.ask_raw(&request.encode(), descriptors)?.0);
        Ok(())
    }

    /// Sends a request that ends this process if init agrees. A report of its success would race with the end, so there
    /// is none.
    fn tell_last(&self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Result<()> {
        match self.link.ask_raw(&request.encode(), descriptors)?.0 {
            Reply::Ok { .. } => hang(),
            refusal => report_answer(&refusal),
        }
        Ok(())
    }

    /// Sends the next image: `self` is the running one, any other name a file in it.
    fn next(&self, image: &str, version: &str, deadline: &str, flaws: &[&str]) -> Result<()> {
        let mut bytes = match image {
            "self" => fs::read(format!(
                "/dev/loop{}",
                rustix::fs::minor(fs::metadata("/")?.dev())
            ))?,
            path => fs::read(path)?,
        };
        if flaws.contains(&"garbage") {
            bytes.fill(0x5a);
        }
        let mut digest = blake3::hash(&bytes);
        if flaws.contains(&"truncated") {
            bytes.truncate(bytes.len() / 2);
        }
        // Cut before it is hashed, so that only the filesystem itself can tell.
        if flaws.contains(&"short") {
            bytes.truncate(bytes.len() / 2);
            digest = blake3::hash(&bytes);
        }
        if flaws.contains(&"empty") {
            bytes.clear();
            digest = blake3::hash(&bytes);
        }
        if flaws.contains(&"flipped") {
            let middle = bytes.len() / 2;
            *bytes.get_mut(middle).context("an empty image")? ^= 1;
        }
        let finish = flaws.iter().find_map(|flaw| flaw.strip_prefix("finish="));
        let request = Request::Next(NextGeneration {
            blake3: digest.to_hex().parse()?,
            version: version.parse()?,
            deadline: deadline.parse()?,
            workloads: match flaws.contains(&"keep") {
                true => Workloads::Keep,
                false => Workloads::End,
            },
            finish: finish.unwrap_or("0").parse()?,
        });
        let image = if flaws.contains(&"file") {
            File::open("/sbin/machined")?.into()
        } else {
            memfd(&bytes, flaws)?
        };
        drop(bytes);
        let many = [image.as_fd(), image.as_fd()];
        let count = match flaws {
            ["none"] => 0,
            ["twice"] => 2,
            _ => 1,
        };
        let descriptors = many.get(..count).unwrap_or_default();
        match finish {
            // The script goes on and may end this process.
            Some(_) => self.tell_with(&request, descriptors),
            None => self.tell_last(&request, descriptors),
        }
    }
}

/// Orders that leave objects behind in a generation, or look at them.
fn leave(words: &[&str]) -> Result<bool> {
    match words {
        ["leave-loop"] => {
            // The device has no user, but does not free itself with its last one.
            let device = LoopControl::open()?.next_free()?;
            let backing = memfd(&[0; 4096], &[])?;
            device.attach_file(format!("/proc/self/fd/{}", backing.as_raw_fd()))?;
            report!("attached {}", device.path().unwrap_or_default().display());
        }
        ["workload"] => workload::start(false)?,
        ["stuck-workload"] => workload::start(true)?,
        ["look-at-workload"] => workload::look()?,
        ["end-workload"] => fs::write("/sys/fs/cgroup/workloads/one/cgroup.kill", "1")?,
        ["service"] => service()?,
        ["saboteur", port] => saboteur::start(port)?,
        ["stray"] => stray()?,
        ["services"] => report!("services {}", sleepers()),
        ["leave-sysctl", path, value] => {
            fs::write(path, value)?;
            report!("{path} is {}", fs::read_to_string(path)?.trim());
        }
        ["leave-cgroup", name] => fs::create_dir(format!("/sys/fs/cgroup/{name}"))?,
        ["cat", path] => report!("{path}: {}", fs::read_to_string(path)?.trim_end()),
        ["say", text @ ..] => report!("{}", text.join(" ")),
        ["print", text @ ..] => println!("{}", text.join(" ")),
        ["state"] => state()?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Orders that end or hang this process.
fn misbehave(words: &[&str]) -> Result<bool> {
    match words {
        ["sleep", milliseconds] => sleep(Duration::from_millis(milliseconds.parse()?)),
        ["hang"] => hang(),
        ["abort"] => std::process::abort(),
        ["kill"] => {
            rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::KILL,
            )?;
        }
        ["kill-init"] => {
            // The kernel protects PID 1 from signals that it does not handle.
            for signal in [rustix::process::Signal::KILL, rustix::process::Signal::TERM] {
                rustix::process::kill_process(rustix::process::Pid::INIT, signal)?;
            }
        }
        ["become", program] => {
            // This process has said hello; the program that it becomes greets init again.
            let error = Command::new(program).arg0("machined").exec();
            return Err(error).with_context(|| format!("become {program}"));
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn report_answer(reply: &Reply) {
    match reply {
        Reply::Ok { to } => report!("ok {to}"),
        Reply::Error { to, code, text } => report!("error {to} {code}: {text}"),
        other => report!("unexpected {other:?}"),
    }
}

/// Starts a process in a cgroup of its own beside machined's.
fn service() -> Result<()> {
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let own = own.trim().strip_prefix("0::").context("no cgroup2")?;
    let parent = own
        .strip_suffix("/machined")
        .with_context(|| format!("in the cgroup {own}"))?;
    let cgroup = format!("/sys/fs/cgroup{parent}/service");
    fs::create_dir_all(&cgroup)?;
    let child = Command::new("/sbin/machined")
        .arg("sleeper")
        .stdin(Stdio::null())
        .spawn()?;
    fs::write(format!("{cgroup}/cgroup.procs"), child.id().to_string())?;
    let controllers = fs::read_to_string(format!("{cgroup}/cgroup.controllers"))?;
    report!("service in {cgroup} with {}", controllers.trim());
    Ok(())
}

/// Starts a process that leaves the generation's cgroup.
fn stray() -> Result<()> {
    let child = Command::new("/sbin/machined")
        .arg("sleeper")
        .stdin(Stdio::null())
        .spawn()?;
    fs::write("/sys/fs/cgroup/cgroup.procs", child.id().to_string())?;
    report!("a stray runs");
    Ok(())
}

/// Number of sleepers that live.
fn sleepers() -> usize {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.ends_with(b"\0sleeper\0")).count()
}

/// Prints the figures that must not grow from generation to generation.
fn state() -> Result<()> {
    let memory = fs::read_to_string("/proc/meminfo")?;
    let free: u64 = memory
        .lines()
        .find_map(|line| {
            line.strip_prefix("MemFree:")?
                .split_whitespace()
                .next()?
                .parse()
                .ok()
        })
        .context("no MemFree")?;
    let zones = fs::read_to_string("/proc/zoneinfo")?;
    let lists = zones
        .lines()
        .filter_map(|line| line.trim().strip_prefix("count:"));
    let pages: u64 = lists
        .filter_map(|count| count.trim().parse::<u64>().ok())
        .sum();
    let init = fs::read_to_string("/proc/1/status")?;
    let rss = init
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap_or("?")
        .trim()
        .to_owned();
    let mounts = fs::read_to_string("/proc/1/mounts")?.lines().count();
    let loops = fs::read_dir("/sys/block")?
        .flatten()
        .filter(|entry| entry.path().join("loop/backing_file").exists());
    report!(
        "state free_kib={} init_rss={rss} init_fds={} mounts={mounts} loops={} cgroups={}",
        free + pages * 4,
        fs::read_dir("/proc/1/fd")?.count(),
        loops.count(),
        fs::read_dir("/sys/fs/cgroup")?
            .flatten()
            .filter(|entry| entry.path().is_dir())
            .count(),
    );
    Ok(())
}

fn memfd(bytes: &[u8], flaws: &[&str]) -> Result<OwnedFd> {
    let memfd = memfd_create("double", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = File::from(memfd);
    file.write_all(bytes)?;
    file.rewind()?;
    if flaws.contains(&"half-sealed") {
        fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::GROW)?;
    } else if !flaws.contains(&"unsealed") {
        fcntl_add_seals(&file, SEALS)?;
    }
    Ok(file.into())
}

fn content(descriptor: OwnedFd) -> Result<String> {
    let mut file = File::from(descriptor);
    let mut text = String::new();
    // A real machined leaves the API's listening socket as well.
    if !file.metadata()?.is_file() {
        return Ok("not a file".to_owned());
    }
    file.rewind()?;
    file.read_to_string(&mut text)?;
    Ok(text)
}

/// Starts an orphan, prints its number, and leaves it.
pub(crate) fn leave_orphan(milliseconds: &str) -> Result<ExitCode> {
    let mut orphan = Command::new("/sbin/machined");
    orphan.args(["orphan", milliseconds]);
    // Without this a reader of this process's output waits for the orphan, too.
    orphan.stdout(Stdio::null()).stderr(Stdio::null());
    println!("{}", orphan.spawn()?.id());
    Ok(ExitCode::SUCCESS)
}

/// Ends after a while, with an unusual status.
pub(crate) fn be_orphan(milliseconds: &str) -> Result<ExitCode> {
    sleep(Duration::from_millis(milliseconds.parse()?));
    Ok(ExitCode::from(7))
}

/// Lives until it is killed.
pub(crate) fn be_sleeper() -> Result<ExitCode> {
    hang()
}

fn hang() -> ! {
    loop {
        sleep(Duration::from_secs(3600));
    }
}
