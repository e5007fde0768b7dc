// Names of parts, as the commands print them.

/** report/draw/bars.py and report/page/card_bar.py. */
const ROLES: Record<string, string> = {
  allocator: 'cached by the allocator', context: 'CUDA context', communication: 'NCCL', vllm: 'vLLM',
}
export const role = (name: string): string => ROLES[name] ?? name.replaceAll('_', ' ')

/** prediction/time/reasons.py. */
const PARTS: Record<string, string> = {
  matrix_products: 'matmuls', memory_bound: 'memory-bound ops', recomputation: 'recomputation (gradient checkpointing)',
  launch: 'GPU waiting for the host', offload: 'offload copies and the optimizer on the CPU', nvme: 'NVMe reads and writes',
  communication: 'GPU waiting for other GPUs', waiting: 'waiting for the longest rows', generation: 'generation by vLLM',
}
export const part = (name: string): string => PARTS[name] ?? name.replaceAll('_', ' ')

/** report/run/time.py, `PHASES`. */
export const PHASES: Record<string, string> = {
  provisioning: 'provisioning the machine', image: 'pulling the image', download: 'downloading the model',
  start: 'starting Python', load: 'loading the model', preparation: 'preparing the data', first_step: "first step's warm-up",
  new_lengths: 'planning for new lengths', training: 'training', evaluation: 'evaluation', checkpoints: 'checkpoints',
  final_save: 'saving the model',
}

/** report/plan/words.py: `kind`, `seller`, `place`. */
export const kind = (text: string): string => text.replace('on-demand', 'on demand')
export const seller = (offer: { provider: string; via: string | null }): string =>
  offer.provider + (offer.via ? ` through ${offer.via}` : '')
export function place(offer: { countries: string[]; placed: string }): string {
  const known = offer.countries.filter(Boolean).sort()
  if (!known.length) return 'country not known'
  if (offer.placed === 'listed') return known.length === 1 ? `${known[0]}?` : `one of ${known.length} countries`
  return known.length <= 2 ? known.join(' or ') : `${known.slice(0, 2).join(', ')} or ${known.length - 2} more`
}

export const STYLE: Record<string, 'good' | 'warn' | 'bad' | 'plain'> = {
  fits: 'good', 'may not fit': 'warn', 'does not fit': 'bad', 'not resolved': 'warn', refused: 'plain',
}
/** Beside a colour always a sign: colour alone tells nobody who cannot see it. */
export const SIGN: Record<string, string> = { fits: '✓', 'may not fit': '?', 'does not fit': '✕', 'not resolved': '?', refused: '–' }

/** What a plan says first where the job has no amount of data (planning/plan.py, `with_data`); '' where it has one. */
export const assumedData = (plan: { assumptions: string[] } | null): string =>
  plan?.assumptions.find((each) => each.startsWith('no amount of data given'))?.split(':')[0] ?? ''

/** Changes a machine's name already tells (report/plan/words.py, `RENTED`). */
export const RENTED = new Set(['hardware.gpu', 'hardware.gpus', 'hardware.nodes', 'hardware.interconnect', 'hardware.inter_node_gbps'])
