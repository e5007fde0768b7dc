// The contract's JSON, as far as the page shows it (docs/contract.md has all of it).

export type Range = [number, number]
export type Value = string | number | boolean | null | (string | number)[]
export type Verdict = 'fits' | 'may not fit' | 'does not fit' | 'not resolved'

export interface Prediction {
  schema: string
  memory: {
    device_bytes: number
    allocated_bytes: number
    range_bytes: { device: Range; allocated: Range; reserved: Range }
    peak_phase: string
    breakdown_bytes: Record<string, number>
  }
  fits: boolean | null
  fits_surely: boolean | null
  capacity_bytes: number
  smallest_capacity_bytes: number
  exactness: 'exact' | 'estimate'
  reasons: string[]
  time: {
    step_s: number
    low_s: number
    high_s: number
    tokens_per_s: number | null
    total_s: number | null
    total_range_s?: Range
    bound_by: string
    breakdown_s: Record<string, number>
    phases_s?: Record<string, number>
    steps?: number
    why: string[]
    lines?: { source: string; gpu_s: number; fraction: number }[] | null
  } | null
  utilization: { mfu: number | null; hfu: number | null; gpu_busy_fraction: number; memory_fraction: number | null } | null
  warnings: string[]
  assumptions: string[]
  trace?: Trace
}

export interface Card {
  gpu: string
  vendor: string
  nominal_bytes: number | null
  memory_bytes: number
  capacity_bytes: number | null
  needs_bytes: number | null
  range_bytes: Range | null
  verdict: Verdict | 'refused'
  reason: string | null
}

export interface Phase { phase: string; step: number; allocated_bytes: number; reserved_bytes: number; breakdown_bytes: Record<string, number> | null }

/** `tunecast.look/1`: the verdict in the command's words, the job with every default, the prediction, every card. */
export interface Looked {
  title: string
  gpu: string
  verdict: Verdict
  phrase: string
  lines: string[]
  trust: string
  card_bytes: number | null
  phases: Phase[]
  job: Record<string, unknown>
  prediction: Prediction
  /** null where the question left them out. */
  cards: Cards | null
}

/** `tunecast.cards/1`. */
export interface Cards { gpu: string; smallest: string | null; cards: Card[] }

export interface Offer {
  provider: string
  via: string | null
  kind: string
  instance: string | null
  gpu: string
  gpus: number
  usd_per_hour: number
  regions: string[]
  countries: string[]
  placed: string
  dated: string
  vcpus: number | null
  ram_bytes: number | null
}

export interface Choice {
  hardware: string
  offer: Offer
  changes: Record<string, Value>
  device_bytes: number
  device_range_bytes: Range
  capacity_bytes: number
  fits_surely: boolean
  validated: boolean
  evidence: string
  step_s: number
  total_s: number
  total_range_s: Range
  total_usd: number
  usd_range: Range
  cost: {
    lines: { name: string; usd: number; told: string }[]
    billed_s: number
    usd_per_epoch: number | null
    usd_per_million_tokens: number | null
    assumptions: string[]
  }
  energy: { kwh: number; co2_kg: Range | null } | null
  risk: string | null
  why: string
}

export interface Plan {
  best: string | null
  picks: Record<string, Choice | null>
  pareto: Choice[]
  choices: Choice[]
  beside: { kind: string; why: string; choice: Choice }[]
  refused: { hardware: string; reason: string; remedy: string }[]
  searched: { configurations: number; predicted: number; seconds: number }
  prices: { listed: string; age_days: number }
  asked: string[]
  notes: string[]
  assumptions: string[]
  warnings: string[]
}

export interface Change {
  set: Record<string, Value>
  frees_bytes: number | null
  more_time_fraction: number | null
  note: string | null
  quality: string[]
}

export interface Solution {
  harm: 'same' | 'rounded' | 'other'
  changes: Change[]
  frees_bytes: number
  more_time_fraction: number | null
  fits: boolean
  fits_surely: boolean
  needs_bytes: number
  range_bytes: Range
  capacity_bytes: number
  step_s: number | null
}

export interface Fit {
  fits: boolean
  question: string
  before: { needs_bytes: number; range_bytes: Range; capacity_bytes: number; fits: boolean; fits_surely: boolean }
  chosen: Solution | null
  others: Solution[]
  quicker: Solution[]
  offered: Solution[]
}

export interface Model {
  name: string
  hub: string
  family: string
  parameters: number
  active_parameters: number | null
  context: number
  layers: number
}

export interface Recipe {
  job: Record<string, unknown>
  framework: string | null
  release: string | null
  not_understood: { key: string; line: number; why: string }[]
  refused: string | null
}

/** `tunecast.patch/1`. */
export interface Patched { name: string; text: string; diff: string; changes: Record<string, Value>; beside: Record<string, Value>; flags: string }

/** `tunecast.data/1`. */
export interface Data { samples: number; tokens: number; tokenizer: string; format: string; lengths: { mean: number; longest: number; quantiles: Record<string, number> } }

export interface Trace {
  word: string
  steps: number
  traced_steps: number
  finished: boolean
  untraced: string[]
  phases: Phase[]
  modules_bytes: Record<string, number>
  largest: { total_bytes: number; times: number; nbytes: number; role: string; module: string; op: string; source: string; phase: string; step: number }[]
}

/** `tunecast.run/1`. */
/** A row of `tunecast runs --json`; `line` of one that goes on, as `tunecast watch` says it. */
export interface Run {
  id: string
  began: string
  state: 'running' | 'done' | 'failed' | 'oom' | 'killed' | 'stopped'
  gpu: string | null
  gpus: number | null
  nodes: number | null
  model: string | null
  method: string | null
  memory_bytes: number | null
  predicted_memory_bytes: number | null
  step_s: number | null
  predicted_step_s: number | null
  memory_ratio: number | null
  time_ratio: number | null
  line: string | null
}

/** `tunecast.calibration-shown/1`. */
export interface Calibration {
  cards: {
    gpu: string
    runs: number
    groups: { waits_for: string; stack: string; model: string; runs: number; ratio: number; range: Range; newest: string }[]
    left_out: { id: string; reason: string }[]
  }[]
  resets: { card: string | null; before: string }[]
}
