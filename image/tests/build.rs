//! Whole builds by the real program, from a package cache made here, so that no network is needed.
#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use image::digest::{Blake3, Sha256};
use instar_pe::Layout;
use serde_json::{Value, json};

const RELEASE: &str = "6.12.1-cloud-amd64";
const BANNER: &str = "6.12.1-cloud-amd64 (builder@example) #1 SMP";

/// Returns a program that satisfies the builder: an ELF header without segments, which needs no libraries.
fn program(name: &str) -> Vec<u8> {
    let mut file = vec![0; 64];
    file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    file.extend(name.as_bytes());
    file
}

fn kernel() -> Vec<u8> {
    let mut file = vec![0; 0x400];
    file[0x202..0x206].copy_from_slice(b"HdrS");
    file[0x20E..0x210].copy_from_slice(&0x100_u16.to_le_bytes());
    file[0x300..0x300 + BANNER.len()].copy_from_slice(BANNER.as_bytes());
    file
}

/// Returns a UEFI program without code: headers, and one section after them.
fn uefi_program() -> Vec<u8> {
    let mut file = vec![0; 0x600];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"MZ");
    put(0x3C, &0x40_u32.to_le_bytes());
    put(0x40, b"PE\0\0");
    // One section, an optional header of 240 bytes, PE32+, sections at multiples of 4096 and 512, 16 directories.
    put(0x46, &1_u16.to_le_bytes());
    put(0x54, &240_u16.to_le_bytes());
    put(0x58, &0x20B_u16.to_le_bytes());
    put(0x58 + 32, &0x1000_u32.to_le_bytes());
    put(0x58 + 36, &0x200_u32.to_le_bytes());
    put(0x58 + 108, &16_u32.to_le_bytes());
    let section = 0x58 + 240;
    put(section, b".text");
    for (offset, value) in [(8, 0x10_u32), (12, 0x1000), (16, 0x200), (20, 0x400)] {
        put(section + offset, &value.to_le_bytes());
    }
    file
}

/// All inputs of a build.
struct Site {
    folder: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        let site = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        for name in ["init", "machined", "installer"] {
            site.write(&format!("bin/{name}"), &program(name));
        }
        let packages = [
            site.programs(),
            vec![
                site.boot_loader(),
                site.package("unused", &[]),
                site.linux(),
            ],
        ]
        .concat();
        let requested = [
            "crun",
            "dosfstools",
            "e2fsprogs",
            "ca-certificates",
            "systemd-boot-efi",
            "linux-image-cloud-amd64",
        ];
        let lock = json!({ "requested": requested, "packages": packages });
        site.write(
            "lists/trixie-linux-image-cloud-amd64.json",
            lock.to_string().as_bytes(),
        );
        site
    }

    fn programs(&self) -> Vec<Value> {
        let authority = "usr/share/ca-certificates/mozilla/ISRG_Root_X1.crt";
        let copyright = "usr/share/doc/crun/copyright";
        vec![
            self.package(
                "ca-certificates",
                &[(authority, b"-----BEGIN CERTIFICATE-----\n")],
            ),
            self.package(
                "crun",
                &[
                    ("usr/bin/crun", &program("crun")),
                    (copyright, b"Format: 1.0\nLicense: GPL-2+\n"),
                ],
            ),
            self.package("dosfstools", &[("usr/sbin/mkfs.fat", &program("mkfs.fat"))]),
            self.package(
                "e2fsprogs",
                &[
                    ("usr/sbin/mke2fs", &program("mke2fs")),
                    ("usr/sbin/e2fsck", &program("e2fsck")),
                    ("usr/sbin/resize2fs", &program("resize2fs")),
                    ("etc/mke2fs.conf", b"[defaults]\n"),
                ],
            ),
        ]
    }

    fn boot_loader(&self) -> Value {
        let folder = "usr/lib/systemd/boot/efi";
        self.package(
            "systemd-boot-efi",
            &[
                (&format!("{folder}/linuxx64.efi.stub"), &uefi_program()),
                (&format!("{folder}/systemd-bootx64.efi"), &uefi_program()),
            ],
        )
    }

    /// Returns a kernel with all wanted modules built in.
    fn linux(&self) -> Value {
        let wanted = ["init", "all"]
            .map(|section| image::kernel::modules::wanted(section).unwrap())
            .concat();
        let built_in: String = wanted
            .iter()
            .map(|name| format!("kernel/{name}.ko\n"))
            .collect();
        let modules = format!("usr/lib/modules/{RELEASE}/modules.builtin");
        self.package(
            &format!("linux-image-{RELEASE}"),
            &[
                (&format!("boot/vmlinuz-{RELEASE}"), &kernel()),
                (&modules, built_in.as_bytes()),
            ],
        )
    }

    fn path(&self, below: &str) -> PathBuf {
        self.folder.path().join(below)
    }

    fn write(&self, below: &str, bytes: &[u8]) {
        let path = self.path(below);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn package(&self, name: &str, files: &[(&str, &[u8])]) -> Value {
        let sha256 = Sha256::of(name.as_bytes()).to_string();
        let stem = format!("{name}_1.0_{}", &sha256[..16]);
        self.write(
            &format!("cache/debian/packages/{stem}.deb"),
            name.as_bytes(),
        );
        fs::create_dir_all(self.path(&format!("cache/debian/unpacked/{stem}"))).unwrap();
        for (path, bytes) in files {
            self.write(&format!("cache/debian/unpacked/{stem}/{path}"), bytes);
        }
        json!({ "name": name, "version": "1.0", "architecture": "amd64", "source": name, "sha256": sha256 })
    }

    fn build(&self, version: &str, out: &Path, umask: &str, zone: &str) -> Output {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        Command::new("sh")
            .args([
                "-c",
                r#"umask "$1"; shift; exec "$@""#,
                "sh",
                umask,
                env!("CARGO_BIN_EXE_image"),
                "build",
            ])
            .args(["--version", version, "--out"])
            .arg(out)
            .arg("--workspace")
            .arg(workspace)
            .arg("--lists")
            .arg(self.path("lists"))
            .arg("--cache")
            .arg(self.path("cache"))
            .args(["init", "machined", "installer"].iter().flat_map(|name| {
                [
                    format!("--{name}"),
                    self.path(&format!("bin/{name}")).display().to_string(),
                ]
            }))
            .env("TZ", zone)
            .current_dir(out.parent().unwrap())
            .output()
            .unwrap()
    }
}

#[track_caller]
fn succeeds(output: &Output) {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn files_below(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    fn visit(root: &Path, folder: &Path, found: &mut BTreeMap<String, Vec<u8>>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                visit(root, &path, found);
            } else {
                found.insert(
                    path.strip_prefix(root).unwrap().display().to_string(),
                    fs::read(&path).unwrap(),
                );
            }
        }
    }
    let mut found = BTreeMap::new();
    visit(folder, folder, &mut found);
    found
}

#[test]
fn the_same_inputs_give_the_same_bytes() {
    let (one, other) = (Site::new(), Site::new());
    succeeds(&one.build("v0.1.0", &one.path("out"), "022", "UTC"));
    // Over an old build, with another umask, time zone, folder and time.
    succeeds(&other.build("v0.2.0", &other.path("elsewhere"), "022", "UTC"));
    std::thread::sleep(std::time::Duration::from_millis(1100));
    succeeds(&other.build("v0.1.0", &other.path("elsewhere"), "077", "Asia/Tokyo"));

    let (first, second) = (
        files_below(&one.path("out")),
        files_below(&other.path("elsewhere")),
    );
    assert_eq!(
        first.keys().collect::<Vec<_>>(),
        second.keys().collect::<Vec<_>>()
    );
    for (name, bytes) in &first {
        assert!(second[name] == *bytes, "{name} differs");
    }
}

#[test]
fn the_parts_are_what_the_contracts_say() {
    let site = Site::new();
    let out = site.path("out");
    succeeds(&site.build("v0.1.0", &out, "022", "UTC"));
    let rootfs = fs::read(out.join("rootfs.squashfs")).unwrap();
    the_root_filesystem_has_its_files_and_links(&out);
    the_root_filesystem_knows_what_it_is(&out);
    the_manifest_has_the_digest_of_the_root_filesystem(&out, &rootfs);
    let initramfs = fs::read(out.join("initramfs")).unwrap();
    assert!(initramfs.starts_with(&fs::read(out.join("base.cpio")).unwrap()));
    the_uki_holds_all_that_boots(&out, &initramfs);
    the_sbom_lists_what_is_inside_and_no_more(&out);
}

fn the_root_filesystem_has_its_files_and_links(out: &Path) {
    let listing = Command::new("unsquashfs")
        .arg("-lln")
        .arg(out.join("rootfs.squashfs"))
        .output()
        .unwrap();
    let listing = String::from_utf8(listing.stdout).unwrap();
    for line in [
        "drwxr-xr-x 0/0 squashfs-root",
        "drwxrwxrwt 0/0 squashfs-root/tmp",
        "drwxr-xr-x 0/0 squashfs-root/etc/instar",
        "-rwxr-xr-x 0/0 squashfs-root/usr/sbin/machined",
        "lrwxrwxrwx 0/0 squashfs-root/usr/sbin/apid -> machined",
        "lrwxrwxrwx 0/0 squashfs-root/usr/sbin/dashboard -> machined",
        "lrwxrwxrwx 0/0 squashfs-root/sbin -> usr/sbin",
        "lrwxrwxrwx 0/0 squashfs-root/etc/resolv.conf -> /run/etc/resolv.conf",
        "lrwxrwxrwx 0/0 squashfs-root/usr/sbin/mkfs.ext4 -> mke2fs",
        "-rwxr-xr-x 0/0 squashfs-root/usr/bin/crun",
        "-rw-r--r-- 0/0 squashfs-root/etc/ssl/certs/ca-certificates.crt",
        "-rw-r--r-- 0/0 squashfs-root/usr/lib/modules/6.12.1-cloud-amd64/modules.dep",
    ] {
        let found = listing.lines().any(|entry| {
            // Size and time are between owner and path.
            let words: Vec<_> = entry.split_whitespace().collect();
            words.len() > 5 && [&words[..2], &words[5..]].concat().join(" ") == line
        });
        assert!(found, "{line} is not in\n{listing}");
    }
}

fn the_root_filesystem_knows_what_it_is(out: &Path) {
    let identity = Command::new("unsquashfs")
        .arg("-cat")
        .arg(out.join("rootfs.squashfs"))
        .arg("usr/lib/instar/image.json")
        .output()
        .unwrap();
    let identity: Value = serde_json::from_slice(&identity.stdout).unwrap();
    assert_eq!(identity["version"], "v0.1.0");
    assert_eq!(identity["kernel_banner"], BANNER);
    assert_eq!(
        identity["init_blake3"],
        Blake3::of(&program("init")).to_string()
    );
}

fn read_json(file: &Path) -> Value {
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

fn the_manifest_has_the_digest_of_the_root_filesystem(out: &Path, rootfs: &[u8]) {
    let manifest = read_json(&out.join("manifest.json"));
    assert_eq!(manifest["kernel_release"], RELEASE);
    assert_eq!(
        manifest["files"]["rootfs.squashfs"]["blake3"],
        Blake3::of(rootfs).to_string()
    );
}

fn the_uki_holds_all_that_boots(out: &Path, initramfs: &[u8]) {
    let uki = fs::read(out.join("instar.efi")).unwrap();
    let layout = Layout::read(&uki).unwrap();
    let section = |name: &str| {
        let section = layout.section(name).unwrap();
        &uki[section.file.start..][..section.bytes]
    };
    assert_eq!(section(".linux"), kernel());
    assert_eq!(section(".initrd"), initramfs);
    assert_eq!(section(".uname"), RELEASE.as_bytes());
    assert_eq!(
        String::from_utf8_lossy(section(".osrel")),
        "NAME=Instar\nID=instar\nVERSION_ID=v0.1.0\nSYSEXT_LEVEL=1.0\nCONFEXT_LEVEL=1.0\nPRETTY_NAME=\"Instar v0.1.0\"\n"
    );
    let arguments = String::from_utf8_lossy(section(".cmdline")).into_owned();
    assert!(
        arguments.starts_with("console=tty0 console=ttyS0 panic=10 "),
        "{arguments}"
    );
}

fn the_sbom_lists_what_is_inside_and_no_more(out: &Path) {
    let contents = read_json(&out.join("sbom.spdx.json"));
    let packages = contents["packages"].as_array().unwrap().iter();
    let names: Vec<_> = packages
        .map(|package| package["name"].as_str().unwrap())
        .collect();
    for name in [
        "crun",
        "e2fsprogs",
        "ca-certificates",
        "machined",
        "blake3",
        "systemd-boot-efi",
        &format!("linux-image-{RELEASE}"),
    ] {
        assert!(names.contains(&name), "{name} is not in the SBOM");
    }
    assert!(
        !names.contains(&"unused") && !names.contains(&"clap"),
        "the SBOM lists what is not inside"
    );
}

#[test]
fn a_dynamic_program_is_refused_and_the_old_build_stays() {
    let site = Site::new();
    let out = site.path("out");
    succeeds(&site.build("v0.1.0", &out, "022", "UTC"));
    fs::copy("/bin/sh", site.path("bin/init")).unwrap();
    let output = site.build("v0.2.0", &out, "022", "UTC");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && complaint.contains("is not static"),
        "{complaint}"
    );
    let manifest = read_json(&out.join("manifest.json"));
    assert_eq!(manifest["version"], "v0.1.0");
}
