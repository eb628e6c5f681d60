//! File systems of a trial's own: ext4 on loop devices whose power can be cut,
//! and small ones in memory.
//!
//! All of it needs root. Where a privilege or a program is missing the trial
//! fails with what to install; it is never left out.

use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

/// Size of a device: many times what a run of the tiny model writes, and enough
/// for a log (mkfs.ext4 makes none below 8 MiB).
const DEVICE_BYTES: u64 = 24 << 20;

/// Longest that a process which was killed may keep its files open.
const MAX_BUSY: Duration = Duration::from_secs(20);

/// Pause between two attempts to unmount.
const RETRY_EVERY: Duration = Duration::from_millis(20);

/// Frames of a log that is written to see what a cut leaves of one: a database of
/// a few entries has more.
const NUM_FRAMES: u8 = 8;
/// Bytes of a frame's header and of its page, each written by a call of its own
/// (SQLite's file format, "The Write-Ahead Log").
const FRAME_BYTES: [usize; 2] = [24, 4096];
/// Bytes of that log.
pub const NUM_LOG_BYTES: usize = NUM_FRAMES as usize * (FRAME_BYTES[0] + FRAME_BYTES[1]);

const POWER_CUT: &str = include_str!("power_cut.py");

/// What is written back before a cut.
#[derive(Debug, Clone, Copy)]
pub struct Tear {
    /// The most pages in a row of a file.
    pub max_pages: u32,
    /// Files of which some pages are, in percent.
    pub percent: u32,
    /// Decides which.
    pub seed: u64,
}

impl Tear {
    /// Ranges of any length, of every second file.
    #[must_use]
    pub const fn any(seed: u64) -> Self {
        Self { max_pages: u32::MAX, percent: 50, seed }
    }

    /// One page of every file, which is never all of a file that was written with
    /// several.
    #[must_use]
    pub const fn one_page(seed: u64) -> Self {
        Self { max_pages: 1, percent: 100, seed }
    }
}

/// File systems over a folder, unmounted at the end.
#[derive(Debug)]
pub struct Disk {
    /// Device and mount point, in the order in which they are mounted; no device
    /// of one in memory.
    mounts: Vec<(Option<PathBuf>, PathBuf)>,
    temporary: TempDir,
}

impl Disk {
    /// An ext4 file system, and a second one below its `checkpoints` where the
    /// store is to have a device of its own.
    ///
    /// # Errors
    /// When a program or a privilege is missing.
    pub fn ext4(has_own_store: bool) -> Result<Self> {
        let temporary = TempDir::with_prefix("governed-ledger-disk-")?;
        let folder = temporary.path().join("mount");
        let mut disk = Self { mounts: Vec::new(), temporary };
        disk.add_ext4(&folder)?;
        if has_own_store {
            disk.add_ext4(&folder.join("checkpoints"))?;
        }
        Ok(disk)
    }

    fn add_ext4(&mut self, folder: &Path) -> Result<()> {
        let image = self.temporary.path().join(format!("device-{}", self.mounts.len()));
        std::fs::File::create(&image)?.set_len(DEVICE_BYTES)?;
        run("mkfs.ext4", "e2fsprogs", Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(&image))?;
        std::fs::create_dir_all(folder)?;
        mount_image(&image, folder)?;
        // A store holds checkpoints and nothing else.
        std::fs::remove_dir(folder.join("lost+found"))?;
        self.mounts.push((Some(image), folder.to_owned()));
        Ok(())
    }

    /// A file system in memory with room for so many bytes.
    ///
    /// # Errors
    /// When a privilege is missing.
    pub fn memory(num_bytes: u64) -> Result<Self> {
        let temporary = TempDir::with_prefix("governed-ledger-disk-")?;
        let folder = temporary.path().join("mount");
        std::fs::create_dir(&folder)?;
        let options = format!("size={num_bytes}");
        run(
            "mount",
            "mount",
            Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&folder),
        )?;
        Ok(Self { mounts: vec![(None, folder)], temporary })
    }

    /// Gives a file system in memory room for so many bytes.
    ///
    /// # Errors
    /// When it cannot be mounted again.
    pub fn resize(&self, num_bytes: u64) -> Result<()> {
        let options = format!("remount,size={num_bytes}");
        run("mount", "mount", Command::new("mount").args(["-o", &options]).arg(self.folder()))
    }

    /// Where the outer one is mounted.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.temporary.path().join("mount")
    }

    /// Makes everything durable that is there: what a trial begins with.
    ///
    /// # Errors
    /// When it cannot be flushed.
    pub fn flush(&self) -> Result<()> {
        for (_, folder) in &self.mounts {
            run("sync", "coreutils", Command::new("sync").arg("-f").arg(folder))?;
        }
        Ok(())
    }

    /// Cuts the power of every device at once. With a tear, some of what was not
    /// flushed is written back in part before.
    ///
    /// # Errors
    /// When nothing can be written back, or a file system can still be written, so
    /// that nothing was cut.
    pub fn cut(&self, tear: Option<Tear>) -> Result<()> {
        let words = |Tear { max_pages, percent, seed }| format!("{seed}:{percent}:{max_pages}");
        let tear = tear.map_or_else(|| "-".to_owned(), words);
        let folders = self.mounts.iter().map(|(_, folder)| folder);
        run("python3", "python3", Command::new("python3").args(["-c", POWER_CUT, &tear]).args(folders))
    }

    /// Mounts again what was cut. Nobody may use it any more, but for a process
    /// that is about to be gone.
    ///
    /// # Errors
    /// When it cannot be mounted, or stays in use.
    pub fn power_on(&self) -> Result<()> {
        for (_, folder) in self.mounts.iter().rev() {
            unmount(folder)?;
        }
        for (image, folder) in &self.mounts {
            mount_image(image.as_ref().context("only devices are cut")?, folder)?;
            let _ = std::fs::remove_file(folder.join(".power-cut-scratch"));
        }
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        for (_, folder) in self.mounts.iter().rev() {
            // Nothing to do about a failure here but leave the mount behind.
            let _ = Command::new("umount").arg("--lazy").arg(folder).status();
        }
    }
}

/// Whether one page of a log can be written back without all others: the kernel
/// caches files in folios, of one page or of many, and writes whole ones. What is
/// written frame by frame lies in small ones, unless a kernel does it otherwise.
/// Tried once in a process.
///
/// # Errors
/// When nothing can be cut, or nothing is written back.
pub fn tears_logs() -> Result<bool> {
    static KNOWN: Mutex<Option<bool>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(tears) = *known {
        return Ok(tears);
    }
    let left = log_behind_a_cut(Some(Tear::one_page(1)))?;
    ensure!(left.iter().any(|byte| *byte != 0), "a page that was written back is gone behind a power cut");
    let tears = left != log();
    *known = Some(tears);
    Ok(tears)
}

/// What a cut leaves of a log that nobody flushed; nothing where it is gone.
///
/// # Errors
/// When it cannot be written, cut or read.
pub fn log_behind_a_cut(tear: Option<Tear>) -> Result<Vec<u8>> {
    let disk = Disk::ext4(false)?;
    let path = disk.folder().join("log");
    let (mut file, log) = (std::fs::File::create(&path)?, log());
    let mut rest = log.as_slice();
    for num_bytes in FRAME_BYTES.into_iter().cycle() {
        let (next, behind) = rest.split_at(num_bytes.min(rest.len()));
        if next.is_empty() {
            break;
        }
        file.write_all(next)?;
        rest = behind;
    }
    drop(file);
    disk.cut(tear)?;
    disk.power_on()?;
    match std::fs::read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        read => read.with_context(|| path.display().to_string()),
    }
}

/// A log without a byte that is 0, which is what a page has that was not written.
fn log() -> Vec<u8> {
    (1..=NUM_FRAMES).flat_map(|frame| vec![frame; NUM_LOG_BYTES / usize::from(NUM_FRAMES)]).collect()
}

/// Unmounts as soon as nobody uses it.
fn unmount(folder: &Path) -> Result<()> {
    let started = Instant::now();
    loop {
        // In the words of the C locale, which are looked at.
        let unmounted = run("umount", "mount", Command::new("umount").env("LC_ALL", "C").arg(folder));
        match unmounted {
            Err(error) if error.to_string().contains("busy") && started.elapsed() < MAX_BUSY => {
                std::thread::sleep(RETRY_EVERY);
            }
            ended => return ended,
        }
    }
}

fn mount_image(image: &Path, folder: &Path) -> Result<()> {
    run("mount", "mount", Command::new("mount").args(["-o", "loop"]).arg(image).arg(folder))
}

/// Runs a program of the system.
///
/// # Errors
/// With what it said, and with the package that has it where it is missing.
pub fn run(name: &str, package: &str, command: &mut Command) -> Result<()> {
    let output = command.output();
    let output = output.with_context(|| format!("{name} does not start\nhint: apt-get install {package}"))?;
    let message = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{name}: {message}\nhint: file systems are mounted and cut by root, where loop devices are allowed; \
         these trials are never skipped"
    );
    Ok(())
}
