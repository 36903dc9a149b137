//! Keys and signatures, with sbsigntool and openssl as second opinions.

#![allow(clippy::unwrap_used)]

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use image::boot::{authenticode, keys, signer::Signer};

/// Makes a UEFI program with this machine's toolchain: objcopy converts a small program.
fn program(folder: &Path) -> Vec<u8> {
    let source = folder.join("p.c");
    fs::write(&source, "int _start(void) { return 0; }\n").unwrap();
    let (object, program) = (folder.join("p.so"), folder.join("p.efi"));
    run(Command::new("gcc")
        .args([
            "-nostdlib",
            "-shared",
            "-fPIC",
            "-Wl,-z,separate-code",
            "-o",
        ])
        .arg(&object)
        .arg(&source));
    run(Command::new("objcopy")
        .args([
            "-j",
            ".text",
            "--target",
            "efi-app-x86_64",
            "--subsystem",
            "10",
        ])
        .args([&object, &program]));
    fs::read(program).unwrap()
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned() + &said
}

#[test]
fn a_signed_program_is_verified_and_an_altered_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    keys::make(folder.path()).unwrap();
    let signer = Signer::read(&at("db.key"), &at("db.crt")).unwrap();
    let program = program(folder.path());

    let signed = authenticode::sign(&program, &signer).unwrap();
    assert_eq!(
        authenticode::sign(&program, &signer).unwrap(),
        signed,
        "the same bytes each time"
    );
    authenticode::sign(&signed, &signer).unwrap_err();
    fs::write(at("signed.efi"), &signed).unwrap();
    let verify = |certificate: &str, file: &str| {
        Command::new("sbverify")
            .arg("--cert")
            .args([at(certificate), at(file)])
            .output()
            .expect("sbverify is needed: make deps")
    };
    let output = verify("db.crt", "signed.efi");
    let said = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("Signature verification OK"), "{said}");
    assert!(!verify("KEK.crt", "signed.efi").status.success());

    let mut altered = signed;
    // A byte of the code.
    altered[0x400] ^= 1;
    fs::write(at("altered.efi"), &altered).unwrap();
    assert!(!verify("db.crt", "altered.efi").status.success());
}

#[test]
fn a_machine_reads_the_signers_certificate_and_the_signed_ranges() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    keys::make(folder.path()).unwrap();
    let signer = Signer::read(&at("db.key"), &at("db.crt")).unwrap();
    let program = instar_pe::smallest();
    let signed = authenticode::sign(&program, &signer).unwrap();
    let layout = instar_pe::Layout::read(&signed).unwrap();
    let place = layout.signatures(&signed, signed.len()).unwrap();
    assert_eq!(place, program.len()..signed.len());
    let signatures = instar_pe::pkcs7_signatures(&signed[place]);
    assert_eq!(signatures.len(), 1);
    let certificates = instar_pki::certificates_of_signature(signatures[0]).unwrap();
    assert_eq!(certificates, [signer.certificate()]);
}

#[test]
fn keys_are_private_belong_together_and_are_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    keys::make(folder.path()).unwrap();
    let mode = fs::metadata(at("PK.key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(
        keys::make(folder.path())
            .unwrap_err()
            .to_string()
            .contains("is there already")
    );
    let error = Signer::read(&at("db.key"), &at("PK.crt")).unwrap_err();
    assert!(
        format!("{error:#}").contains("for another key"),
        "{error:#}"
    );
    let names: Vec<String> = keys::signed_variables(folder.path())
        .unwrap()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(names, ["PK.auth", "KEK.auth", "db.auth"]);

    // PK's signature of the variable KEK, over its name, vendor GUID, attributes, time and value.
    let auth = fs::read(at("KEK.auth")).unwrap();
    let length = u32::from_le_bytes(auth[16..20].try_into().unwrap()) as usize;
    let (signature, value) = (&auth[40..16 + length], &auth[16 + length..]);
    let mut signed: Vec<u8> = "KEK".encode_utf16().flat_map(u16::to_le_bytes).collect();
    signed.extend([
        0x61, 0xdf, 0xe4, 0x8b, 0xca, 0x93, 0xd2, 0x11, 0xaa, 0x0d, 0x00, 0xe0, 0x98, 0x03, 0x2b,
        0x8c,
    ]);
    signed.extend(0x27_u32.to_le_bytes());
    signed.extend(&auth[..16]);
    signed.extend(value);
    // openssl needs the ContentInfo that variables leave out.
    let header = |tag: u8, length: usize| {
        [
            &[tag, 0x82][..],
            &u16::try_from(length).unwrap().to_be_bytes(),
        ]
        .concat()
    };
    let inner = [header(0xA0, signature.len()), signature.to_vec()].concat();
    let oid = [
        0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x07, 0x02,
    ];
    let whole = [header(0x30, oid.len() + inner.len()), oid.to_vec(), inner].concat();
    fs::write(at("signature"), whole).unwrap();
    fs::write(at("signed"), signed).unwrap();
    let verify = |authority: &str| {
        let mut command = Command::new("openssl");
        command
            .args([
                "cms",
                "-verify",
                "-inform",
                "DER",
                "-binary",
                "-purpose",
                "any",
                "-out",
                "/dev/null",
                "-in",
            ])
            .arg(at("signature"))
            .arg("-content")
            .arg(at("signed"))
            .arg("-CAfile")
            .arg(at(authority));
        command
    };
    run(&mut verify("PK.crt"));
    assert!(!verify("db.crt").output().unwrap().status.success());
}
