//! Keys of one's own for Secure Boot: PK (allows changes of keys), KEK (allows changes of db), db (allows programs),
//! and the signed variables with which a machine in setup mode enrols them (UEFI specification 2.10, 32.4).

use std::{fs, io::Write, os::unix::fs::OpenOptionsExt, path::Path, process::Command};

use anyhow::{Context, Result, ensure};

use super::{
    signed_data::{self, Signed},
    signer::Signer,
};

/// A GUID as UEFI stores it: three numbers little endian, then bytes.
type Guid = [u8; 16];

/// Vendor GUID of PK and KEK: 8be4df61-93ca-11d2-aa0d-00e098032b8c.
const GLOBAL: Guid = [
    0x61, 0xdf, 0xe4, 0x8b, 0xca, 0x93, 0xd2, 0x11, 0xaa, 0x0d, 0x00, 0xe0, 0x98, 0x03, 0x2b, 0x8c,
];
/// Vendor GUID of db: d719b2cb-3d3a-4596-a3bc-dad00e67656f.
const SECURITY: Guid = [
    0xcb, 0xb2, 0x19, 0xd7, 0x3a, 0x3d, 0x96, 0x45, 0xa3, 0xbc, 0xda, 0xd0, 0x0e, 0x67, 0x65, 0x6f,
];
/// GUID of a list of certificates: a5c059a1-94e4-4aa7-87b5-ab155c2bf072.
const X509: Guid = [
    0xa1, 0x59, 0xc0, 0xa5, 0xe4, 0x94, 0xa7, 0x4a, 0x87, 0xb5, 0xab, 0x15, 0x5c, 0x2b, 0xf0, 0x72,
];
/// GUID of a signature in PKCS#7: 4aafd29d-68df-49ee-8aa9-347d375665a7.
const PKCS7: Guid = [
    0x9d, 0xd2, 0xaf, 0x4a, 0xdf, 0x68, 0xee, 0x49, 0x8a, 0xa9, 0x34, 0x7d, 0x37, 0x56, 0x65, 0xa7,
];
/// GUID of the keys' owner: 3a7b2c51-0f6e-4d0b-9a53-8f1d6b6f21c4, Instar's, chosen at random.
const OWNER: Guid = [
    0x51, 0x2c, 0x7b, 0x3a, 0x6e, 0x0f, 0x0b, 0x4d, 0x9a, 0x53, 0x8f, 0x1d, 0x6b, 0x6f, 0x21, 0xc4,
];
/// Kept, for firmware and system, changed only by a signature with a time.
const ATTRIBUTES: u32 = 0x27;
/// 2026-01-01: a later change of the variable needs a later time.
const TIME: [u8; 16] = [0xea, 0x07, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// Lifetime of each certificate, days.
const DAYS: &str = "3650";

/// The three variables: name, vendor GUID, and the key that signs changes of it.
const VARIABLES: [(&str, Guid, &str); 3] = [
    ("PK", GLOBAL, "PK"),
    ("KEK", GLOBAL, "PK"),
    ("db", SECURITY, "KEK"),
];

/// Makes `PK`, `KEK` and `db` in the folder: each as `.key` and `.crt` in PEM, and as `.auth`, the signed variable.
///
/// # Errors
/// openssl is missing or fails, or the folder has these keys already: they may be in use.
pub fn make(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for (name, _, _) in VARIABLES {
        make_key(folder, name)?;
    }
    for (name, vendor, owner) in VARIABLES {
        let signer = signer(folder, owner)?;
        let certificate = self::signer(folder, name)?;
        let value = signature_list(certificate.certificate())?;
        let file = folder.join(format!("{name}.auth"));
        fs::write(&file, signed_variable(name, &vendor, &value, &signer)?)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// Returns the signed variables in a folder, by file name, for the loader to enrol.
///
/// # Errors
/// One of the three is missing.
pub fn signed_variables(folder: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let read = |(name, _, _): &(&str, Guid, &str)| {
        let name = format!("{name}.auth");
        let path = folder.join(&name);
        let content = fs::read(&path)
            .with_context(|| format!("cannot read the key to enrol {}", path.display()))?;
        Ok((name, content))
    };
    VARIABLES.iter().map(read).collect()
}

fn signer(folder: &Path, name: &str) -> Result<Signer> {
    Signer::read(
        &folder.join(format!("{name}.key")),
        &folder.join(format!("{name}.crt")),
    )
}

fn make_key(folder: &Path, name: &str) -> Result<()> {
    let key = folder.join(format!("{name}.key"));
    ensure!(
        !key.exists(),
        "{} is there already: machines may have been set up with it; name another folder",
        key.display()
    );
    // The mode keeps other users from reading the key, from the first byte on.
    let opened = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&key);
    let mut file = opened.with_context(|| format!("cannot write {}", key.display()))?;
    let output = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-sha256"])
        .args(["-days", DAYS, "-subj", &format!("/CN=Instar {name}")])
        .args(["-keyout", "-", "-out"])
        .arg(folder.join(format!("{name}.crt")))
        .output()
        .context("cannot start openssl (Debian: openssl)")?;
    ensure!(
        output.status.success(),
        "openssl cannot make the key {name}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    file.write_all(&output.stdout)
        .with_context(|| format!("cannot write {}", key.display()))
}

/// `EFI_SIGNATURE_LIST` with one certificate.
fn signature_list(certificate: &[u8]) -> Result<Vec<u8>> {
    let entry = u32::try_from(OWNER.len() + certificate.len())?;
    let mut list = X509.to_vec();
    list.extend((28 + entry).to_le_bytes());
    list.extend(0_u32.to_le_bytes());
    list.extend(entry.to_le_bytes());
    list.extend(OWNER);
    list.extend(certificate);
    Ok(list)
}

/// `EFI_VARIABLE_AUTHENTICATION_2` and the value.
fn signed_variable(name: &str, vendor: &Guid, value: &[u8], signer: &Signer) -> Result<Vec<u8>> {
    let name: Vec<u8> = name.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let signed = [&name[..], vendor, &ATTRIBUTES.to_le_bytes(), &TIME, value].concat();
    let signature = signed_data::signed_data(&Signed::Outside(&signed), signer)?;
    let mut variable = TIME.to_vec();
    variable.extend(u32::try_from(24 + signature.len())?.to_le_bytes());
    // Revision 2.0, a signature of UEFI's own kinds.
    variable.extend(0x0200_u16.to_le_bytes());
    variable.extend(0x0EF1_u16.to_le_bytes());
    variable.extend(PKCS7);
    variable.extend(signature);
    variable.extend(value);
    Ok(variable)
}
