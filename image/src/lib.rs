//! Builds everything that boots: the root filesystem, the initramfs around it, the installer image, and the list of what is inside.
//!
//! Needs no root and no mounts: trees are values ([`tree::Tree`]) until they become an archive, a squashfs or an image layer.
//! The same inputs (binaries, resolved packages, version) give the same bytes.
//!
//! The decision: files, owners and modes are values until the last step. Building a tree on a disk (debootstrap, mkosi) was the other choice:
//! it needs root for owners and devices, and whatever the build machine leaves in the tree gets into the image.

pub mod archive;
pub mod boot;
pub mod build;
pub mod certificates;
pub mod container;
pub mod cpio;
pub mod crates;
pub mod debian;
pub mod digest;
pub mod elf;
pub mod extension;
pub mod firmware;
pub mod initramfs;
pub mod installer_image;
pub mod kernel;
pub mod kubernetes_base;
pub mod media;
pub mod oci;
pub mod postgresql;
pub mod programs;
pub mod rootfs;
pub mod sbom;
pub mod squashfs;
pub mod stand_in;
pub mod tree;
pub use instar_values::version;
