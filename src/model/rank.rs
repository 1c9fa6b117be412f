//! Which rank of a distributed job a process is, from the variables of its launcher. The environment is an
//! argument; nothing is read here. `python/gpurun/_client.py` has the same list, and a test compares them.

/// Variables that name a process's rank, the most specific first: a launcher inside another one wins. Open MPI,
/// PMIx and PMI come before Slurm, because `mpirun` in a Slurm job starts one Slurm task a node.
pub const RANK_VARIABLES: [&str; 6] =
    ["RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "LOCAL_RANK"];

/// Variables that name a node's number in a job with one launcher a node.
const NODE_RANK_VARIABLES: [&str; 4] = ["PET_NODE_RANK", "GROUP_RANK", "NODE_RANK", "SLURM_NODEID"];

/// How many tasks the Slurm step has. Without it `SLURM_PROCID` is that of a batch script, always 0.
const STEP_TASKS: &str = "SLURM_STEP_NUM_TASKS";

/// Tasks of the Slurm step on each node, as `4(x2),3`.
const STEP_TASKS_PER_NODE: &str = "SLURM_STEP_TASKS_PER_NODE";

/// The rank of a training process with this environment, if it is one of several.
pub fn rank(variable: impl Fn(&str) -> Option<String>) -> Option<i32> {
    let number = |name: &str| natural(&variable, name);
    RANK_VARIABLES
        .into_iter()
        .filter(|name| *name != "SLURM_PROCID" || number(STEP_TASKS).is_some_and(|tasks| tasks > 1))
        .find_map(number)
}

/// The rank of gpurun itself: that of its environment, unless it comes from Slurm and the step has one task on each
/// node. Then its job is a launcher such as `torchrun`, whose children have ranks of their own.
pub fn own_rank(variable: impl Fn(&str) -> Option<String>) -> Option<i32> {
    let rank = rank(&variable);
    let given = ["RANK", "OMPI_COMM_WORLD_RANK"].iter().any(|name| natural(&variable, name).is_some());
    let slurm = !given && rank.is_some() && rank == natural(&variable, "SLURM_PROCID");
    rank.filter(|_| !slurm || !has_one_task_a_node(&variable))
}

/// The number of this node in the job.
pub fn node_rank(variable: impl Fn(&str) -> Option<String>) -> Option<i32> {
    NODE_RANK_VARIABLES.into_iter().find_map(|name| natural(&variable, name))
}

fn natural(variable: &impl Fn(&str) -> Option<String>, name: &str) -> Option<i32> {
    variable(name)?.trim().parse().ok().filter(|number| *number >= 0)
}

fn has_one_task_a_node(variable: &impl Fn(&str) -> Option<String>) -> bool {
    let is_one = |part: &str| part.split_once("(x").map_or(part, |(tasks, _)| tasks) == "1";
    variable(STEP_TASKS_PER_NODE).is_some_and(|list| list.split(',').all(is_one))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &'static [(&'static str, &'static str)]) -> impl Fn(&str) -> Option<String> + Copy {
        |name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    }

    fn both(variables: &'static [(&'static str, &'static str)]) -> (Option<i32>, Option<i32>, Option<i32>) {
        let environment = of(variables);
        (rank(environment), own_rank(environment), node_rank(environment))
    }

    #[test]
    fn the_innermost_launcher_wins() {
        let srun4 = &[
            ("SLURM_PROCID", "3"),
            ("SLURM_NODEID", "1"),
            ("SLURM_STEP_NUM_TASKS", "4"),
            ("SLURM_STEP_TASKS_PER_NODE", "2(x2)"),
        ];
        assert_eq!(both(srun4), (Some(3), Some(3), Some(1)));
        // A launcher a node: gpurun is no rank, the workers of torchrun below it are.
        let per_node = &[
            ("SLURM_PROCID", "1"),
            ("SLURM_NODEID", "1"),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_STEP_TASKS_PER_NODE", "1(x2)"),
        ];
        assert_eq!(both(per_node), (Some(1), None, Some(1)));
        // Four ranks on two nodes, as they fitted.
        let uneven = &[
            ("SLURM_PROCID", "3"),
            ("SLURM_NODEID", "1"),
            ("SLURM_STEP_NUM_TASKS", "4"),
            ("SLURM_STEP_TASKS_PER_NODE", "3,1"),
        ];
        assert_eq!(both(uneven), (Some(3), Some(3), Some(1)));
        let worker = &[("RANK", "12"), ("LOCAL_RANK", "4"), ("SLURM_PROCID", "1"), ("SLURM_NODEID", "1")];
        assert_eq!(both(worker), (Some(12), Some(12), Some(1)));
        // mpirun's daemons are Slurm's tasks.
        let mpi = &[
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("SLURM_PROCID", "1"),
            ("SLURM_NODEID", "1"),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_STEP_TASKS_PER_NODE", "1(x2)"),
        ];
        assert_eq!(both(mpi), (Some(1), Some(1), Some(1)));
    }

    #[test]
    fn a_batch_script_is_no_rank() {
        let batch = &[("SLURM_PROCID", "0"), ("SLURM_NODEID", "0"), ("SLURM_NTASKS", "8")];
        assert_eq!(both(batch), (None, None, Some(0)));
        assert_eq!(both(&[]), (None, None, None));
        assert_eq!(both(&[("RANK", "x"), ("PMI_RANK", "-1"), ("LOCAL_RANK", "2")]).0, Some(2));
    }
}
