//! Images: pulls of the same image by machined's code and by other tools, in one run on the host; the cost of a second image on the same
//! base; the cold start of a site without its registry. Only the ratios mean something.
//!
//! Each tool pulls from one registry on loopback and unpacks. The tools take turns, and the fastest of their turns counts. Mounting
//! overlays and keeping owners needs root.

mod cold_start;
mod peers;
mod shared_base;
mod subject;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use instar_tests::{Registry, Scratch, guest_program_file};
use serde_json::Value;

use self::peers::{Containerd, Cost, Podman, SkopeoAndUmoci};
use crate::table::{Goal, Limit, Table};

/// Number of turns of each tool.
const TURNS: usize = 3;

/// A tool that pulls and unpacks.
trait Tool {
    /// Pulls an image that it does not have, and unpacks it.
    fn pull(&mut self, name: &str) -> Result<Cost>;
    /// Forgets everything that it pulled.
    fn forget(&mut self, name: &str) -> Result<()>;
}

pub(crate) async fn measure(scratch: &Scratch, table: &mut Table) -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "bench images mounts overlays and keeps owners of files: run it as root"
    );
    let registry = Registry::start(scratch)?;
    beside_other_tools(scratch, &registry, table)?;
    shared_base::measure(scratch, &registry, table)?;
    cold_start::measure(scratch, table).await
}

fn beside_other_tools(scratch: &Scratch, registry: &Registry, table: &mut Table) -> Result<()> {
    let zstd = subject::push(registry, subject::Packing::Zstd)?;
    let gzip = subject::push(registry, subject::Packing::Gzip)?;
    table.add("pull_download_bytes", zstd.bytes as f64, Limit::None);

    let mut ours = Ours::new(scratch)?;
    let mut containerd = Containerd::start(scratch)?;
    let mut podman = Podman::new(scratch);
    let mut umoci = SkopeoAndUmoci::new(scratch);
    // Debian's umoci does not read zstd.
    let [own, their, podman_zstd] = fastest([&mut ours, &mut containerd, &mut podman], &zstd.name)?;
    let [own_gzip, their_gzip, podman_gzip, umoci_gzip] = fastest(
        [&mut ours, &mut containerd, &mut podman, &mut umoci],
        &gzip.name,
    )?;

    let over = |own: u64, their: u64| own as f64 / their.max(1) as f64;
    let at_most = |limit| Goal(Limit::AtMost(limit));
    let wall = over(own.wall_ms, their.wall_ms);
    table.add("pull_zstd_over_containerd_wall", wall, at_most(0.6));
    let cpu = over(own.cpu_ms, their.cpu_ms);
    table.add("pull_zstd_over_containerd_cpu", cpu, at_most(0.5));
    let wall = over(own_gzip.wall_ms, their_gzip.wall_ms);
    table.add("pull_gzip_over_containerd_wall", wall, at_most(0.8));
    let peak = ours.peak_kib as f64;
    table.add("pull_peak_kib", peak, at_most(16.0 * 1024.0));
    for (name, cost) in [
        ("pull_zstd", own),
        ("pull_gzip", own_gzip),
        ("containerd_pull_zstd", their),
        ("containerd_pull_gzip", their_gzip),
        ("podman_pull_zstd", podman_zstd),
        ("podman_pull_gzip", podman_gzip),
        ("skopeo_and_umoci_gzip", umoci_gzip),
    ] {
        table.add(&format!("{name}_wall_ms"), cost.wall_ms as f64, Limit::None);
        table.add(&format!("{name}_cpu_ms"), cost.cpu_ms as f64, Limit::None);
    }
    Ok(())
}

/// Lets the tools take turns with one image, and returns the best figures of each.
fn fastest<const N: usize>(mut tools: [&mut dyn Tool; N], name: &str) -> Result<[Cost; N]> {
    let mut best = [Cost::UNKNOWN; N];
    for _ in 0..TURNS {
        for (tool, best) in tools.iter_mut().zip(&mut best) {
            // Nobody waits for the disk on behalf of the tool before.
            rustix::fs::sync();
            let cost = tool.pull(name)?;
            *best = best.better(cost);
            tool.forget(name)?;
        }
    }
    Ok(best)
}

/// machined's code.
struct Ours<'a> {
    program: std::path::PathBuf,
    scratch: &'a Scratch,
    /// The most memory that a pull had, in KiB.
    peak_kib: u64,
}

impl<'a> Ours<'a> {
    fn new(scratch: &'a Scratch) -> Result<Self> {
        Ok(Ours {
            program: guest_program_file("instar-image-load")?,
            scratch,
            peak_kib: 0,
        })
    }

    fn store(&self) -> std::path::PathBuf {
        self.scratch.join("store")
    }
}

impl Tool for Ours<'_> {
    fn pull(&mut self, name: &str) -> Result<Cost> {
        let mut command = Command::new(&self.program);
        command.arg(name).arg(self.store());
        let output = command.output().context("cannot run image-load")?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "image-load: {complaint}");
        let numbers: Value = serde_json::from_slice(&output.stdout)?;
        let number = |field: &str| {
            let number = numbers.get(field).and_then(Value::as_u64);
            number.with_context(|| format!("image-load printed no {field}"))
        };
        self.peak_kib = self.peak_kib.max(number("peak_kib")?);
        Ok(Cost {
            wall_ms: number("wall_ms")?,
            cpu_ms: number("cpu_ms")?,
        })
    }

    fn forget(&mut self, _: &str) -> Result<()> {
        clear(&self.store())
    }
}

/// Removes a directory, if it is there.
fn clear(directory: &Path) -> Result<()> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", directory.display()))
        }
        _ => Ok(()),
    }
}
