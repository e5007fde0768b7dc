// Which tunecast: that of the setting, of the selected Python environment, of the workspace's .venv, or on the PATH.
import { execFile } from 'node:child_process'
import { existsSync, realpathSync } from 'node:fs'
import { basename, delimiter, dirname, isAbsolute, join } from 'node:path'
import * as vscode from 'vscode'

/** `words`: what starts it. `python`: of the environment it is in, where that is known. */
export interface Tunecast { words: string[]; python: string | null; has: Parts }
/** What is installed: the language server's packages, and those of the page. */
export interface Parts { tunecast: boolean; lsp: boolean; serve: boolean }
/** `environment`: where it could be installed, where there is one; `parts`: what of it is there. */
export interface Missing { environment: string | null; parts: Parts | null }
interface Candidate { python: string | null; script: string | null }

const WINDOWS = process.platform === 'win32'
const MODULES = `
import json
from importlib.util import find_spec as find
there = find("tunecast") is not None
print(json.dumps({
    "tunecast": there,
    "lsp": there and bool(find("tunecast.lsp") and find("pygls")),
    "serve": there and bool(find("starlette") and find("uvicorn")),
}))`
const CHECK_MS = 20_000

/** The first that can serve an editor; else the first environment it could be installed into. */
export async function find(folder: vscode.WorkspaceFolder | undefined): Promise<Tunecast | Missing> {
  let missing: Missing = { environment: null, parts: null }
  for (const candidate of await candidates(folder)) {
    const has = await partsOf(candidate)
    if (has?.tunecast && has.lsp) return { words: words(candidate), python: candidate.python, has }
    if (has && (missing.environment === null || (has.tunecast && !missing.parts?.tunecast)))
      missing = { environment: candidate.python, parts: has }
  }
  return missing
}

async function candidates(folder: vscode.WorkspaceFolder | undefined): Promise<Candidate[]> {
  const given = text(vscode.workspace.getConfiguration('tunecast', folder).get('path'))
  if (given) return [ofProgram(resolved(given, folder))]
  const pythons = [
    await selected(folder?.uri),
    resolved(text(vscode.workspace.getConfiguration('python', folder).get('defaultInterpreterPath')), folder),
    ...(folder ? ['.venv', 'venv'].map((name) => join(folder.uri.fsPath, name, ...(WINDOWS ? ['Scripts', 'python.exe'] : ['bin', 'python']))) : []),
  ]
  const found = pythons.filter((path): path is string => !!path && isAbsolute(path) && existsSync(path)).map(ofPython)
  const program = onPath('tunecast')
  const python = onPath('python3') ?? onPath('python')
  return [...found, ...(program ? [ofProgram(program)] : []), ...(python ? [ofPython(python)] : [])]
}

/** Of the Python extension, where there is one: its public API, as far as it is asked here. */
interface Environments {
  getActiveEnvironmentPath(resource?: vscode.Uri): { path: string }
  resolveEnvironment(path: { path: string }): Promise<{ executable: { uri?: vscode.Uri } } | undefined>
  onDidChangeActiveEnvironmentPath: vscode.Event<unknown>
}

async function environments(): Promise<Environments | undefined> {
  const extension = vscode.extensions.getExtension<{ environments?: Environments }>('ms-python.python')
  if (!extension) return undefined
  try {
    return (await extension.activate()).environments
  } catch {
    return undefined // its own trouble, which it says itself
  }
}

async function selected(resource: vscode.Uri | undefined): Promise<string | undefined> {
  const known = await environments()
  if (!known) return undefined
  const found = await known.resolveEnvironment(known.getActiveEnvironmentPath(resource))
  return found?.executable.uri?.fsPath
}

/** Calls back when another environment is selected. */
export async function onSelected(changed: () => void): Promise<vscode.Disposable | undefined> {
  return (await environments())?.onDidChangeActiveEnvironmentPath(changed)
}

function ofPython(python: string): Candidate {
  const script = join(dirname(python), WINDOWS ? 'tunecast.exe' : 'tunecast')
  return { python, script: existsSync(script) ? script : null }
}

/** A `tunecast`, with the Python of the environment it is in (a link leads there); or a Python. */
function ofProgram(path: string): Candidate {
  if (/^python[\d.]*(\.exe)?$/i.test(basename(path))) return ofPython(path)
  const folders = [dirname(path), ...(existsSync(path) ? [dirname(realpathSync(path))] : [])]
  const python = folders.map((each) => join(each, WINDOWS ? 'python.exe' : 'python')).find((each) => existsSync(each))
  return { python: python ?? null, script: path }
}

// -P: the folder that an editor has open is not where modules are looked for.
const words = ({ python, script }: Candidate): string[] => (script ? [script] : [python!, '-P', '-m', 'tunecast'])

async function partsOf({ python, script }: Candidate): Promise<Parts | null> {
  try {
    if (python) return JSON.parse(await output([python, '-c', MODULES])) as Parts
    if (script) await output([script, '--version'])
    return script ? { tunecast: true, lsp: true, serve: true } : null // which parts, it says itself when it is asked
  } catch {
    return null
  }
}

/** What a program prints, run in the folder it is in: none of the workspace's files is a module there. */
function output([program, ...given]: string[]): Promise<string> {
  return new Promise((done, failed) => {
    execFile(program!, given, { timeout: CHECK_MS, cwd: dirname(program!) }, (error, printed) => (error ? failed(error) : done(printed)))
  })
}

function onPath(name: string): string | undefined {
  const folders = (process.env.PATH ?? '').split(delimiter).filter(isAbsolute)
  return folders.map((folder) => join(folder, WINDOWS ? `${name}.exe` : name)).find((path) => existsSync(path))
}

function resolved(path: string, folder: vscode.WorkspaceFolder | undefined): string {
  const home = process.env.HOME ?? ''
  const plain = path.replace(/^~(?=[/\\])/, home).replaceAll('${workspaceFolder}', folder?.uri.fsPath ?? '').replaceAll('${userHome}', home)
  if (!plain || isAbsolute(plain)) return plain
  return /[/\\]/.test(plain) && folder ? join(folder.uri.fsPath, plain) : (onPath(plain) ?? plain)
}

const text = (given: unknown): string => (typeof given === 'string' ? given.trim() : '')
