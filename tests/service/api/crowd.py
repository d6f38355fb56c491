"""Jobs with many candidates and lists of many jobs, written by SQL as copies of one that was lived through."""

from __future__ import annotations

import uuid

from sqlalchemy import text
from sqlalchemy.orm import Session

from tests.service.api.world import Story, audited, evolved

COPY_JOBS = text(
    "INSERT INTO jobs (id, team_id, problem_id, target, method, agents, budgets, seed, priority, labels, request_hash,"
    " author, state, reason, preparation, generation, candidates, created_at, started_at, finished_at)"
    " SELECT gen_random_uuid(), team_id, problem_id, target, method, agents, budgets, n, priority,"
    " jsonb_build_object('sweep', (n % 20)::text), request_hash, 'user-' || n % 7, state, reason, preparation,"
    " generation, candidates, now() - make_interval(mins => n), started_at, finished_at"
    " FROM jobs CROSS JOIN generate_series(1, :count) n WHERE id = :job"
)
# Every candidate is crossed from the one of its place and the next in the generation before; it may be the best so far.
GENERATIONS = text(
    "INSERT INTO generations (id, job_id, number, state, pending, finished_at)"
    " SELECT gen_random_uuid(), :job, n, 'finished', 0, now() FROM generate_series(1, :generations) n"
)
STRATEGIES = text(
    "INSERT INTO strategies (id, job_id, hash, signature, origin, body)"
    " SELECT gen_random_uuid(), :job, md5(n::text), md5(n::text), origin,"
    " jsonb_set(body, '{techniques,0,id}', to_jsonb('technique_' || n % 12))"
    " FROM strategies CROSS JOIN generate_series(1, :count) n WHERE id = :strategy"
)
KERNELS = text(
    "INSERT INTO kernels (hash, target, source, plan) SELECT md5(CAST(:job AS text)) || md5(n::text), target,"
    " source || '// ' || n, plan FROM kernels CROSS JOIN generate_series(1, :count) n"
    " WHERE hash = (SELECT kernel_hash FROM candidates WHERE id = :candidate)"
)
CANDIDATES = text(
    "INSERT INTO candidates (id, job_id, generation_id, ordinal, operator, state, strategy_id, aligned_strategy_id,"
    " kernel_hash, verdict, speedup, utilisation, survives, created_at, finished_at)"
    " SELECT gen_random_uuid(), :job, g.id, :first + row_number() OVER (ORDER BY g.number, place) - 1, 'crossover',"
    " 'evaluated', s.id, s.id, md5(CAST(:job AS text)) || s.hash,"
    " CASE WHEN place % 3 = 0 THEN 'rejected' ELSE 'audited' END::verdict,"
    " CASE WHEN place % 3 <> 0 THEN 1 + g.number / 50.0 + place / 500.0 END, 0.5, place <= 2, now(), now()"
    " FROM candidates c JOIN generations g ON g.job_id = c.job_id AND g.number > 0 CROSS JOIN"
    " generate_series(1, :each) place JOIN strategies s ON s.job_id = c.job_id AND s.hash ="
    " md5(((g.number - 1) * :each + place)::text) WHERE c.id = :candidate"
)
PARENTS = text(
    "INSERT INTO candidate_parents (candidate_id, position, parent_id) SELECT c.id, position, p.id FROM candidates c"
    " CROSS JOIN generate_series(0, 1) position JOIN candidates p ON p.job_id = c.job_id"
    " AND p.ordinal = GREATEST(c.ordinal - :each - position, 0) WHERE c.job_id = :job AND c.ordinal > 1"
    " ON CONFLICT DO NOTHING"
)
STEPS = text(
    "INSERT INTO steps (id, job_id, generation_id, candidate_id, key, kind, queue, state, busy_seconds, started_at,"
    " finished_at) SELECT gen_random_uuid(), job_id, generation_id, id, 'c' || ordinal || '/again', 'evaluate',"
    " 'gpu.cpu', 'succeeded', 1.5, now(), now() FROM candidates WHERE job_id = :job AND ordinal >= :first"
)
EVALUATIONS = text(
    "INSERT INTO evaluations (id, job_id, candidate_id, step_id, kernel_hash, problem_hash, purpose, verdict, body)"
    " SELECT gen_random_uuid(), c.job_id, c.id, s.id, c.kernel_hash, e.problem_hash, e.purpose, c.verdict, e.body"
    " FROM candidates c JOIN steps s ON s.candidate_id = c.id AND s.key = 'c' || c.ordinal || '/again'"
    " JOIN evaluations e ON e.candidate_id = :candidate WHERE c.job_id = :job"
)
LINK = text(
    "UPDATE candidates c SET evaluation_id = e.id FROM evaluations e"
    " WHERE e.candidate_id = c.id AND c.job_id = :job AND c.evaluation_id IS NULL"
)
EVENTS = text(
    "INSERT INTO events (job_id, candidate_id, kind) SELECT job_id, id, 'candidate.evaluated' FROM candidates"
    " WHERE job_id = :job"
)
TOTALS = text(
    "UPDATE jobs SET candidates = (SELECT count(*) FROM candidates WHERE job_id = :job), generation = :generations,"
    " best_candidate_id = (SELECT id FROM candidates WHERE job_id = :job ORDER BY speedup DESC NULLS LAST, ordinal"
    " LIMIT 1) WHERE id = :job"
)


def with_many_candidates(session: Session, team: uuid.UUID, generations: int, each: int) -> uuid.UUID:
    """A job that goes on, with so many generations of so many candidates, each crossed from two of the one before."""
    story = Story(session, team).prepare()
    first = story.generation(0)
    model = story.candidate(first, audited(1.0), best=True)
    story.leave_no_steps()
    session.flush()
    given = {
        "job": story.job.id,
        "candidate": model.id,
        "strategy": model.strategy_id,
        "generations": generations,
        "each": each,
        "count": generations * each,
        "first": 1,
    }
    for statement in (GENERATIONS, STRATEGIES, KERNELS, CANDIDATES, PARENTS, STEPS, EVALUATIONS, LINK, EVENTS, TOTALS):
        session.execute(statement, {name: given[name] for name in statement.compile().params})
    return story.job.id


def many_jobs(session: Session, team: uuid.UUID, count: int) -> None:
    """So many jobs that have ended, a minute apart, with labels and authors of their own."""
    session.flush()
    session.execute(COPY_JOBS, {"job": evolved(session, team).id, "count": count})
