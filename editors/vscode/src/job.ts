// A job as the page's address has it (web/src/lib/state.svelte.ts), and what a file says for tunecast in a comment.

/** Of the settings. */
export interface Limits { gpu: string; gpus: number | null; within: string; budget: number | null; eu: boolean }
type Value = string | number | boolean | null | Value[]

/** Files that a server does not open for a page: their contents are not in the address. */
const PATHS = ['data.path', 'data.tokenizer']
/** Lengths are a file, or a data set that is known, a distribution, or numbers. */
const FILE = /[\\/]|\.\w*$/

/** `read`: what /api/read answered. Empty where it is no job. */
export function address(read: unknown, text: string, limits: Limits): string {
  const job = (read as { job?: unknown } | null)?.job
  if (typeof job !== 'object' || job === null || !('model' in job)) return ''
  const said = { ...limits, ...comment(text) }
  const fields = flat(job as Record<string, unknown>)
  if (said.gpu) fields['hardware.gpu'] = said.gpu
  if (said.gpus) fields['hardware.gpus'] = Number(said.gpus)
  for (const path of PATHS) delete fields[path]
  if (FILE.test(String(fields['data.lengths'] ?? ''))) delete fields['data.lengths']
  const query = new URLSearchParams()
  for (const [name, value] of Object.entries(fields)) query.set(name, typeof value === 'string' ? value : JSON.stringify(value))
  if (said.within) query.set('plan.within', said.within)
  if (said.budget) query.set('plan.max_usd', String(said.budget))
  if (String(said.eu) === 'true') query.set('plan.eu', 'true')
  return `#/look?${query.toString()}`
}

/** `# tunecast: gpu=rtx-4090 within=6h eu`: what the file itself says goes before the settings, as in tunecast/lsp/asked.py. */
export function comment(text: string): Record<string, string> {
  const words = /^[ \t]*#[ \t]*tunecast:([^\r\n]*)/m.exec(text)?.[1]?.slice(0, 400).split(/[\s,]+/) ?? []
  const said: Record<string, string> = {}
  for (const word of words) {
    const [name = '', value = ''] = word.toLowerCase().split('=')
    if (name === 'eu') said[name] = String(!['false', 'no', 'off', '0'].includes(value))
    else if (['gpu', 'gpus', 'within', 'budget'].includes(name) && value) said[name] = value.replace(/^\$/, '')
  }
  return said
}

function flat(job: Record<string, unknown>, prefix = ''): Record<string, Value> {
  const fields: Record<string, Value> = {}
  for (const [name, value] of Object.entries(job)) {
    if (value === null || value === undefined) continue
    if (typeof value === 'object' && !Array.isArray(value)) Object.assign(fields, flat(value as Record<string, unknown>, `${prefix}${name}.`))
    else fields[prefix + name] = value as Value
  }
  return fields
}
