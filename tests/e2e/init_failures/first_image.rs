//! The image that a machine boots first: there is no earlier one.

use instar_tests::{DoubleRootfs, Outcome, Scratch, ScriptedInit, Test, tests};

pub(super) fn tests() -> Vec<Test> {
    tests![
        a_first_image_with_another_digest_is_not_started,
        a_first_image_that_is_cut_is_not_started,
        a_first_image_that_is_no_squashfs_is_not_started,
        a_first_image_without_a_digest_is_not_started,
        a_first_image_whose_machined_cannot_run_ends_in_a_reboot,
    ]
}

async fn a_first_image_with_another_digest_is_not_started(scratch: Scratch) -> Outcome {
    let image = DoubleRootfs::new(&scratch, "rootfs", "hello")?.squashfs()?;
    let zeros = "0".repeat(64);
    ScriptedInit::boot_image(&scratch, "", &image, Some(&zeros))?.says_until_its_end(&format!(
        "
        init: generation 1: the image hashes to {}, not to {zeros}; rebooting in 10 seconds
        reboot: Restarting system
    ",
        blake3::hash(&image)
    ))
}

/// The image is cut before its digest is computed, so that only the filesystem can tell.
async fn a_first_image_that_is_cut_is_not_started(scratch: Scratch) -> Outcome {
    let image = DoubleRootfs::new(&scratch, "rootfs", "hello")?.squashfs()?;
    let half = &image[..image.len() / 2];
    let digest = blake3::hash(half).to_string();
    ScriptedInit::boot_image(&scratch, "", half, Some(&digest))?.says_until_its_end(
        "
        init: generation 1: cannot mount the image as a squashfs: …; rebooting in 10 seconds
        reboot: Restarting system
    ",
    )
}

async fn a_first_image_that_is_no_squashfs_is_not_started(scratch: Scratch) -> Outcome {
    let noise = vec![0x5a; 1 << 20];
    let digest = blake3::hash(&noise).to_string();
    ScriptedInit::boot_image(&scratch, "", &noise, Some(&digest))?.says_until_its_end(
        "
        init: generation 1: cannot mount the image as a squashfs: Invalid argument (os error 22) (Can't find a SQUASHFS superblock on loop0); rebooting in 10 seconds
        reboot: Restarting system
    ",
    )
}

async fn a_first_image_without_a_digest_is_not_started(scratch: Scratch) -> Outcome {
    let image = DoubleRootfs::new(&scratch, "rootfs", "hello")?.squashfs()?;
    ScriptedInit::boot_image(&scratch, "", &image, None)?.says_until_its_end("
        init: cannot read /rootfs.b3: No such file or directory (os error 2); rebooting in 10 seconds
        reboot: Restarting system
    ")
}

async fn a_first_image_whose_machined_cannot_run_ends_in_a_reboot(scratch: Scratch) -> Outcome {
    let image = DoubleRootfs::new(&scratch, "rootfs", "")?
        .file("sbin/machined", b"no program", 0o755)?
        .squashfs()?;
    let digest = blake3::hash(&image).to_string();
    ScriptedInit::boot_image(&scratch, "", &image, Some(&digest))?.says_until_its_end("
        init: generation 1 starts, boot id …
        init: generation 1: cannot start /sbin/machined: Exec format error (os error 8); rebooting in 10 seconds
        reboot: Restarting system
    ")
}
