//! Brings what runs from one document to another, or leaves it as it was.

use crate::steps::Step;
use std::fmt;

/// Something that runs, and takes steps.
pub trait Running {
    /// What it takes to take a step back: it keeps what the step took away, since an emptied RAM
    /// disk could not be filled again.
    type Undo;

    /// Takes a step; nothing has changed if that fails.
    ///
    /// # Errors
    /// One sentence.
    fn take(&mut self, step: &Step) -> Result<Self::Undo, String>;

    /// Takes a step back. All later ones were taken back before.
    ///
    /// # Errors
    /// One sentence; the step stays taken.
    fn take_back(&mut self, undo: Self::Undo) -> Result<(), String>;
}

/// Why a target could not be changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failed {
    /// The step that failed.
    pub step: Box<Step>,
    /// One sentence.
    pub reason: String,
    /// What could not be taken back, a sentence each; empty if all is as it was.
    pub left: Vec<String>,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)?;
        for sentence in &self.left {
            write!(f, "; and this could not be taken back: {sentence}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failed {}

/// Takes all steps, or none.
///
/// # Errors
/// The step that failed; what was done before it was taken back.
pub fn reconcile<R: Running>(running: &mut R, steps: &[Step]) -> Result<Vec<R::Undo>, Failed> {
    let mut done = Vec::new();
    for step in steps {
        match running.take(step) {
            Ok(undo) => done.push(undo),
            Err(reason) => {
                let left = take_all_back(running, done);
                return Err(Failed { step: Box::new(step.clone()), reason, left });
            }
        }
    }
    Ok(done)
}

/// Takes back what [`reconcile`] did, the last first; gives what could not be, in sentences.
pub fn take_all_back<R: Running>(running: &mut R, done: Vec<R::Undo>) -> Vec<String> {
    done.into_iter().rev().filter_map(|undo| running.take_back(undo).err()).collect()
}
