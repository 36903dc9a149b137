//! The real init of the image under test, with a stand-in for machined that misbehaves by a script (`tests/double`).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use instar_qemu::{Vm, VmSpec};

use crate::image_under_test::ImageUnderTest;
use crate::initramfs::Initramfs;
use crate::other_rootfs::squash;
use crate::scratch::Scratch;
use crate::workspace::guest_program;

/// Timeout for a machine that ends by itself, on a host that runs others too.
const PATIENCE: Duration = Duration::from_secs(180);
/// `printk.devkmsg` is left out: init itself has to see to it that no line is dropped.
const COMMAND_LINE: &str = "console=ttyS0 panic=10 cryptomgr.notests transparent_hugepage=never";
/// Prefixes of the lines that are compared: all of init and the double, and the kernel's end.
const TRANSCRIBED: [&str; 5] = [
    "init: ",
    "double: ",
    "reboot: Restarting system",
    "reboot: Power down",
    "reboot: System halted",
];

/// A root filesystem in the making, with the double as `/sbin/machined`.
#[derive(Debug)]
pub struct DoubleRootfs {
    folder: PathBuf,
}

impl DoubleRootfs {
    /// A root filesystem whose double runs this script. `name` is that of its folder in the scratch directory.
    pub fn new(scratch: &Scratch, name: &str, script: &str) -> Result<Self> {
        let rootfs = Self {
            folder: scratch.join(name),
        };
        for directory in ["proc", "sys", "dev", "run"] {
            fs::create_dir_all(rootfs.folder.join(directory))?;
        }
        rootfs
            .file("sbin/machined", &guest_program("machined-double")?, 0o755)?
            .file("script", script.as_bytes(), 0o644)
    }

    /// Adds a file, or replaces one.
    pub fn file(self, path: &str, content: &[u8], mode: u32) -> Result<Self> {
        let path = self.folder.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        Ok(self)
    }

    /// Removes a file.
    pub fn without(self, path: &str) -> Result<Self> {
        fs::remove_file(self.folder.join(path)).with_context(|| format!("cannot remove {path}"))?;
        Ok(self)
    }

    /// Makes the image.
    pub fn squashfs(self) -> Result<Vec<u8>> {
        squash(&self.folder)
    }
}

/// A machine with the real init.
#[derive(Debug)]
pub struct ScriptedInit(Vm);

impl ScriptedInit {
    /// Boots init with a double that runs this script.
    pub fn boot(scratch: &Scratch, arguments: &str, script: &str) -> Result<Self> {
        let image = DoubleRootfs::new(scratch, "rootfs", script)?.squashfs()?;
        let digest = blake3::hash(&image).to_string();
        Self::boot_image(scratch, arguments, &image, Some(&digest))
    }

    /// Boots init with any image, and this text for its file with the digest.
    pub fn boot_image(
        scratch: &Scratch,
        arguments: &str,
        image: &[u8],
        digest: Option<&str>,
    ) -> Result<Self> {
        let under_test = ImageUnderTest::first()?;
        let mut generation = Initramfs::default().file("rootfs.squashfs", image);
        if let Some(digest) = digest {
            generation = generation.file("rootfs.b3", format!("{digest}\n").as_bytes());
        }
        let mut archive = read(&under_test.base())?;
        archive.extend(generation.finish());
        let archive = scratch.write("initramfs", archive)?;
        let spec = VmSpec::kernel(under_test.kernel(), archive)
            .memory_mib(256)
            .command_line(format!("{COMMAND_LINE} {arguments}"))
            .end_on_reboot()
            .deadline(PATIENCE);
        Ok(Self(Vm::start(&spec, &scratch.join("vm"))?))
    }

    /// The machine.
    pub fn vm(&self) -> &Vm {
        &self.0
    }

    /// Waits until the machine has rebooted or powered off, and compares all lines of init, the double and the kernel's
    /// end with the expected ones. `…` stands for any text within a line.
    pub fn says_until_its_end(&self, expected: &str) -> Result<()> {
        self.0.wait_for_end(PATIENCE)?;
        self.said(expected)
    }

    /// As [`Self::says_until_its_end`], for a machine that halts: waits for the kernel's last line.
    pub fn says_until_it_halts(&self, expected: &str) -> Result<()> {
        self.0.wait_for_line("reboot: System halted", PATIENCE)?;
        self.said(expected)
    }

    fn said(&self, expected: &str) -> Result<()> {
        let console = self.0.console();
        let said = transcript(&console);
        let expected: Vec<&str> = expected
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .collect();
        for index in 0..said.len().max(expected.len()) {
            let (pattern, line) = (expected.get(index), said.get(index));
            if pattern.zip(line).is_none_or(|(p, l)| !matches(p, l)) {
                bail!(
                    "line {} should be\n  {}\nbut is\n  {}\nof all that was said:\n{}",
                    index + 1,
                    pattern.unwrap_or(&"(nothing more)"),
                    line.unwrap_or(&"(nothing more)"),
                    said.join("\n")
                );
            }
        }
        Ok(())
    }

    /// Returns the kernel's times of the lines that contain the text.
    pub fn times_of(&self, text: &str) -> Vec<Duration> {
        let console = self.0.console();
        let lines = console.lines().filter(|line| line.contains(text));
        lines.filter_map(kernel_time).collect()
    }

    /// Returns the deadlines that the double was welcomed with, in seconds.
    pub fn deadlines(&self) -> Vec<u64> {
        deadlines(&self.0.console())
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}: run `make image`", path.display()))
}

/// Splits a line into the kernel's time stamp and its text.
fn split(line: &str) -> Option<(&str, &str)> {
    let (stamp, text) = line.strip_prefix('[')?.split_once("] ")?;
    Some((stamp.trim_start(), text))
}

fn kernel_time(line: &str) -> Option<Duration> {
    let seconds: f64 = split(line)?.0.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

fn deadlines(console: &str) -> Vec<u64> {
    let lines = transcript(console).into_iter();
    let welcomes = lines.filter(|line| line.starts_with("double: welcome "));
    let after = welcomes.filter_map(|line| Some(line.split_once(" deadline=")?.1));
    after
        .filter_map(|text| text.split(' ').next()?.parse().ok())
        .collect()
}

/// Returns the compared lines, in order. All programs write to the kernel's log, so lines are whole.
fn transcript(console: &str) -> Vec<&str> {
    let texts = console.lines().filter_map(|line| Some(split(line)?.1));
    texts
        // The kernel complains about init's own read of the image.
        .filter(|text| !text.ends_with("attempt to access beyond end of device"))
        .filter(|text| TRANSCRIBED.iter().any(|start| text.starts_with(start)))
        .collect()
}

fn matches(pattern: &str, line: &str) -> bool {
    let mut parts = pattern.split('…');
    let Some(rest) = line.strip_prefix(parts.next().unwrap_or_default()) else {
        return false;
    };
    let mut rest = Some(rest);
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest == Some("");
    }
    while let (Some(part), Some(text)) = (parts.next(), rest) {
        rest = match parts.peek() {
            // The last part has to be the end of the line.
            None => text.ends_with(part).then_some(""),
            Some(_) => text.split_once(part).map(|(_, after)| after),
        };
    }
    rest.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_the_whole_line() {
        assert!(matches("init: a", "init: a"));
        assert!(!matches("init: a", "init: ab"));
        assert!(!matches("init: ab", "init: a"));
        assert!(matches("a … c", "a b c"));
        assert!(matches("a …", "a b c"));
        assert!(matches("a … b … d", "a x b y d"));
        assert!(!matches("a … b … d", "a x b y"));
        assert!(!matches("a … b … d", "a x d"));
        assert!(matches("…", ""));
    }

    #[test]
    fn deadlines_are_those_of_welcomes() {
        let console = "[ 1.5] init: x deadline=7 y\n[ 2.0] double: welcome start=boot deadline=4 kept=[]\n[ 5.0] double: welcome deadline=1 kept\n";
        assert_eq!(deadlines(console), [4, 1]);
    }

    #[test]
    fn a_transcript_has_whose_lines_count() {
        let console = "noise\n[    1.5] Run /init as init process\n[    2.0] init: one\nx init: no\n[   12.25] double: two\n";
        assert_eq!(transcript(console), ["init: one", "double: two"]);
        assert_eq!(
            kernel_time("[   12.25] double: two"),
            Some(Duration::from_millis(12_250))
        );
    }
}
