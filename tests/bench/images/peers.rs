//! The other tools: Debian's containerd with overlayfs, podman with overlay, and skopeo with umoci. Each has directories of its own.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use instar_tests::Scratch;

use super::{Tool, clear};

/// Time limit for containerd to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Milliseconds of a clock tick in /proc/PID/stat: Linux shows hundredths of a second (proc_pid_stat(5)).
const TICK_MS: u64 = 10;

/// The time that a pull takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    /// Time from the start of the program to its end.
    pub(super) wall_ms: u64,
    /// Processor time of all its threads and processes.
    pub(super) cpu_ms: u64,
}

impl Cost {
    /// Worse than anything measured.
    pub(super) const UNKNOWN: Cost = Cost {
        wall_ms: u64::MAX,
        cpu_ms: u64::MAX,
    };

    pub(super) fn better(self, other: Cost) -> Cost {
        Cost {
            wall_ms: self.wall_ms.min(other.wall_ms),
            cpu_ms: self.cpu_ms.min(other.cpu_ms),
        }
    }
}

/// containerd, and `ctr` that asks it.
pub(super) struct Containerd {
    process: Child,
    address: String,
}

impl Containerd {
    pub(super) fn start(scratch: &Scratch) -> Result<Self> {
        let directory = scratch.join("containerd");
        let shown = directory.display();
        let address = format!("{shown}/socket");
        let config = format!(
            "version = 2\nroot = \"{shown}/root\"\nstate = \"{shown}/state\"\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n\
             [grpc]\naddress = \"{address}\"\n"
        );
        let config = scratch.write("containerd.toml", config)?;
        let log = std::fs::File::create(scratch.join("containerd.log"))?;
        let process = Command::new("containerd")
            .arg("--config")
            .arg(config)
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot run containerd: install the package containerd")?;
        let containerd = Containerd { process, address };
        let until = Instant::now() + PATIENCE;
        while containerd.ctr(&["version"]).output()?.status.code() != Some(0) {
            if Instant::now() > until {
                bail!("containerd does not answer: see containerd.log");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(containerd)
    }

    fn ctr(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("ctr");
        command.args(["--address", &self.address]).args(arguments);
        command
    }

    /// Processor time of the daemon and of the programs that it ran.
    fn daemon_ms(&self) -> Result<u64> {
        let [own, children] = processor_ms(&self.process.id().to_string())?;
        Ok(own + children)
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        // It is this program's own child.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Tool for Containerd {
    fn pull(&mut self, name: &str) -> Result<Cost> {
        let before = self.daemon_ms()?;
        let pull = [
            "images",
            "pull",
            "--plain-http",
            "--snapshotter",
            "overlayfs",
            name,
        ];
        let mut cost = timed(&mut [self.ctr(&pull)])?;
        cost.cpu_ms += self.daemon_ms()? - before;
        Ok(cost)
    }

    fn forget(&mut self, name: &str) -> Result<()> {
        timed(&mut [self.ctr(&["images", "rm", "--sync", name])])?;
        Ok(())
    }
}

/// podman, without any daemon.
pub(super) struct Podman<'a> {
    scratch: &'a Scratch,
}

impl<'a> Podman<'a> {
    pub(super) fn new(scratch: &'a Scratch) -> Self {
        Podman { scratch }
    }

    fn podman(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("podman");
        command
            .arg("--root")
            .arg(self.scratch.join("podman"))
            .arg("--runroot")
            .arg(self.scratch.join("podman-run"))
            .args(["--storage-driver", "overlay"])
            .args(arguments);
        command
    }
}

impl Tool for Podman<'_> {
    fn pull(&mut self, name: &str) -> Result<Cost> {
        timed(&mut [self.podman(&["pull", "--tls-verify=false", name])])
    }

    fn forget(&mut self, name: &str) -> Result<()> {
        timed(&mut [self.podman(&["rmi", name])])?;
        Ok(())
    }
}

/// skopeo, which copies an image into an OCI layout, and umoci, which unpacks that.
pub(super) struct SkopeoAndUmoci<'a> {
    scratch: &'a Scratch,
}

impl<'a> SkopeoAndUmoci<'a> {
    pub(super) fn new(scratch: &'a Scratch) -> Self {
        SkopeoAndUmoci { scratch }
    }
}

impl Tool for SkopeoAndUmoci<'_> {
    fn pull(&mut self, name: &str) -> Result<Cost> {
        let layout = self.scratch.join("layout");
        let mut copy = Command::new("skopeo");
        copy.args(["--insecure-policy", "copy", "--src-tls-verify=false"])
            .arg(format!("docker://{name}"))
            .arg(format!("oci:{}:it", layout.display()));
        let mut unpack = Command::new("umoci");
        unpack
            .args(["unpack", "--image"])
            .arg(format!("{}:it", layout.display()))
            .arg(self.scratch.join("umoci"));
        timed(&mut [copy, unpack])
    }

    fn forget(&mut self, _: &str) -> Result<()> {
        clear(&self.scratch.join("layout"))?;
        clear(&self.scratch.join("umoci"))
    }
}

/// Runs commands one after the other, to the good end of each.
fn timed(commands: &mut [Command]) -> Result<Cost> {
    let [_, before] = processor_ms("self")?;
    let begun = Instant::now();
    for command in commands {
        let output = command
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot run {command:?}"))?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{command:?}: {complaint}");
    }
    let wall = begun.elapsed().as_millis();
    let [_, after] = processor_ms("self")?;
    Ok(Cost {
        wall_ms: u64::try_from(wall)?,
        cpu_ms: after - before,
    })
}

/// Processor time of a process and of its children that have ended, in milliseconds: fields 14 to 17 of /proc/PID/stat
/// (proc_pid_stat(5)).
fn processor_ms(process: &str) -> Result<[u64; 2]> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    let after_name = stat.rsplit_once(')').context("no name in stat")?.1;
    let fields = after_name.split_whitespace().skip(11).take(4);
    let ticks = fields.map(str::parse).collect::<Result<Vec<u64>, _>>()?;
    match ticks[..] {
        [user, system, of_children, system_of_children] => Ok([
            (user + system) * TICK_MS,
            (of_children + system_of_children) * TICK_MS,
        ]),
        _ => bail!("too few fields in stat"),
    }
}
